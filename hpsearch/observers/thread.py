"""A thread for each observer, so that neither the sweep nor another observer waits for it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from hpsearch.observers.base import Observer, Record
from hpsearch.schedulers.base import RungView
from hpsearch.trial import Report

__all__ = ["ObserverThread", "close_all"]

_BURST_SECONDS = 1.0
"""Observers take what comes in bursts, and write out what they held back: each time the thread wakes it disturbs the
thread that runs the sweep, and a short trial's file is opened once and not four times."""

_Call = Callable[[Observer], None]


class ObserverThread:
    """Hands what happens to an observer, in order, on a thread of its own.

    An observer that raises, or that takes longer than its deadline for one call, is named once and hears no more.
    """

    def __init__(self, observer: Observer, say: Callable[[str], None]) -> None:
        """Start the thread.

        Args:
            observer: Who watches.
            say: Told once when the observer is let go; called from its thread or the caller's.
        """
        self._observer = observer
        self._say = say
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._gone = False
        self._seen = 0
        self._called_at: float | None = None
        """When the call that runs now began."""
        name = f"hpsearch-observer-{self.name}"
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        """The observer's."""
        return type(self._observer).__name__

    def observe(self, record: Record) -> None:
        """Pass on a record."""
        self._put(lambda observer: self._observe(observer, record))

    def report(self, reports: Sequence[Report]) -> None:
        """Pass on live reports."""
        if reports:
            self._put(lambda observer: observer.report(reports))

    def rungs(self, rungs: Sequence[RungView]) -> None:
        """Pass on the state of the rungs."""
        self._put(lambda observer: observer.rungs(rungs))

    def begin_close(self) -> float:
        """Say that nothing more comes; give the time on the monotonic clock until which it may take."""
        self._closing.set()
        self._calls.put(_wake)
        return time.monotonic() + self._observer.deadline

    def end_close(self, until: float) -> None:
        """Wait until everything is passed on and the observer is closed, or let it go."""
        if not self._gone:
            self._thread.join(max(until - time.monotonic(), 0.0))
        if self._thread.is_alive():
            self._let_go(f"it hadn't taken everything {self._observer.deadline:g} s after the end of the sweep")

    def _put(self, call: _Call) -> None:
        called_at = self._called_at
        if called_at is not None and time.monotonic() - called_at > self._observer.deadline:
            self._let_go(f"one call took longer than its deadline of {self._observer.deadline:g} s")
        if not self._gone:
            self._calls.put(call)

    def _get_ready(self, observer: Observer) -> None:
        self._seen = observer.seen()

    def _observe(self, observer: Observer, record: Record) -> None:
        if record.seq > self._seen:
            observer.observe(record)

    def _work(self) -> None:
        self._tell(self._get_ready)
        while not self._gone and not (self._closing.is_set() and self._calls.empty()):
            self._tell(self._calls.get())
            self._closing.wait(_BURST_SECONDS)
            while not self._calls.empty():
                self._tell(self._calls.get())
            self._tell(lambda observer: observer.flush())
        self._tell(lambda observer: observer.close())

    def _tell(self, call: _Call) -> None:
        if self._gone:
            return
        self._called_at = time.monotonic()
        try:
            call(self._observer)
        except BaseException as error:  # a SystemExit would end the thread without a word
            self._let_go(f"{type(error).__name__}: {error}")
        finally:
            self._called_at = None

    def _let_go(self, why: str) -> None:
        with self._lock:
            if self._gone:
                return
            self._gone = True
        while not self._calls.empty():  # a study's worth of records may wait there
            with suppress(queue.Empty):
                self._calls.get_nowait()
        self._calls.put(_wake)
        self._say(
            f"{type(self._observer).__name__} stopped: {why}. The sweep goes on without it; {self._observer.remedy}."
        )


def _wake(observer: Observer) -> None:
    """Tell the observer nothing; its thread may wait for a call."""


def close_all(threads: Sequence[ObserverThread]) -> None:
    """Close all observers side by side, each within its own deadline."""
    for thread, until in [(thread, thread.begin_close()) for thread in threads]:
        thread.end_close(until)
