"""One thread for all observers, so that the sweep never waits for them; each that raises is let go."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

from hpsearch.events import Event
from hpsearch.observers.base import Observer
from hpsearch.schedulers.base import Decision, RungView
from hpsearch.trial import Report

__all__ = ["ObserverThread"]

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
            self._calls.put(None)
            self._thread.join()
            self._thread = None

    def _put(self, call: _Call) -> None:
        if self._thread is not None:
            self._calls.put(call)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            self._tell(call)
            if self._calls.empty():
                self._tell(lambda observer: observer.flush())
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
