"""One thread for all observers, so that the sweep never waits for them; each that raises is let go."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence

from hpsearch.decision import Decision
from hpsearch.events import Event
from hpsearch.observers.base import Observer
from hpsearch.schedulers.base import RungView
from hpsearch.trial import Report

__all__ = ["ObserverThread"]

_PAUSE_SECONDS = 0.05
"""Observers take what comes in bursts: each time the thread wakes it disturbs the thread that runs the sweep."""

_FLUSH_SECONDS = 1.0
"""How long what observers hold back may wait; a short trial's file is then opened once and not four times."""

_Call = Callable[[Observer], None]


class ObserverThread:
    """Hands what happens to observers, in order, on a thread of its own."""

    def __init__(self, observers: Sequence[Observer], say: Callable[[str], None]) -> None:
        """Start the thread.

        Args:
            observers: Who watches.
            say: Told once when an observer raises; called from the thread.
        """
        self._observers = list(observers)
        self._say = say
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        if self._observers:
            self._thread = threading.Thread(target=self._work, name="hpsearch-observers", daemon=True)
            self._thread.start()

    def observe(self, event: Event, decisions: Sequence[Decision]) -> None:
        """Pass on a journaled event and the decisions on it."""
        self._put(lambda observer: observer.observe(event, decisions))

    def report(self, reports: Sequence[Report]) -> None:
        """Pass on live reports."""
        if reports:
            self._put(lambda observer: observer.report(reports))

    def rungs(self, rungs: Sequence[RungView]) -> None:
        """Pass on the state of the rungs."""
        self._put(lambda observer: observer.rungs(rungs))

    def close(self) -> None:
        """Wait until everything is passed on, and close the observers."""
        if self._thread is not None:
            self._closing.set()
            self._calls.put(None)
            self._thread.join()
            self._thread = None

    def _put(self, call: _Call) -> None:
        if self._thread is not None:
            self._calls.put(call)

    def _work(self) -> None:
        flush_at: float | None = None  # None: nothing was told since the last flush
        while True:
            try:
                left = None if flush_at is None else max(flush_at - time.monotonic(), 0.0)
                call = self._calls.get(timeout=left)
            except queue.Empty:
                self._tell(lambda observer: observer.flush())
                flush_at = None
                continue
            if call is None:
                break
            self._tell(call)
            if flush_at is None:
                flush_at = time.monotonic() + _FLUSH_SECONDS
            elif time.monotonic() >= flush_at:
                self._tell(lambda observer: observer.flush())
                flush_at = None
            if self._calls.empty():
                self._closing.wait(_PAUSE_SECONDS)
        self._tell(lambda observer: observer.close())

    def _tell(self, call: _Call) -> None:
        for observer in list(self._observers):
            try:
                call(observer)
            except Exception as error:
                self._observers.remove(observer)
                self._say(
                    f"{type(observer).__name__} stopped: {type(error).__name__}: {error}. The sweep goes on; "
                    "resuming writes its files anew."
                )
