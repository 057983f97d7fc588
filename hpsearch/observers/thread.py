"""A thread for each observer, so that neither the sweep nor another observer waits for it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress

from hpsearch.observers.base import Observer, Record
from hpsearch.schedulers.base import RungView
from hpsearch.trial import Report

_BURST_SECONDS = 1.0
"""Seconds between two batches of events for an observer, which flushes after each batch. Every wake-up of its thread
slows down the sweep's thread, and a short trial's file is opened once instead of four times."""

MAKING_SECONDS = 30.0
"""Longest time that the creation of an observer may take, in seconds. Meanwhile nothing runs."""

_Call = Callable[[Observer], None]


class ObserverThread:
    """Creates an observer and passes events to it, in order, on its own thread.

    An observer that raises an exception, or exceeds its deadline in one call, is reported once and dropped.
    """

    def __init__(self, make: Callable[[], Observer], say: Callable[[str], None]) -> None:
        """Start the thread, and wait until the observer is created.

        Args:
            make: Creates the observer, on its thread.
            say: Called once if the observer is dropped, from the observer's thread or the caller's.

        Raises:
            TimeoutError: The creation takes longer than `MAKING_SECONDS`.
            Exception: Any exception that the creation raises.
        """
        self._say = say
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._gone = False
        self._has_begun = False
        self._last_seq = 0
        self._called_at: float | None = None
        """Start time of the current call."""
        made: Future[Observer] = Future()
        self._thread = threading.Thread(target=self._work, args=(make, made), name="hpsearch-observer", daemon=True)
        self._thread.start()
        try:
            self._observer = made.result(MAKING_SECONDS)
        except BaseException:
            self._gone = True
            raise
        self.name = type(self._observer).__name__

    @property
    def keeps(self) -> bool:
        """Whether the observer's output persists: see `Observer.keeps`."""
        return self._observer.keeps

    def abandon(self) -> None:
        """Drop the observer without closing it."""
        with self._lock:
            self._gone = True
        self._closing.set()
        self._calls.put(_wake)

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
        """Request the observer's end, and return its deadline on the monotonic clock."""
        self._begin()
        self._closing.set()
        self._calls.put(_wake)
        return time.monotonic() + self._observer.deadline

    def end_close(self, until: float) -> None:
        """Wait until all events are passed on and the observer is closed, or drop it at its deadline."""
        if not self._gone:
            self._thread.join(max(until - time.monotonic(), 0.0))
        if self._thread.is_alive():
            self._drop(f"it hadn't taken everything {self._observer.deadline:g} s after the end of the sweep")

    def _put(self, call: _Call) -> None:
        called_at = self._called_at
        if called_at is not None and time.monotonic() - called_at > self._observer.deadline:
            self._drop(f"one call took longer than its deadline of {self._observer.deadline:g} s")
        if not self._gone:
            self._begin()
            self._calls.put(call)

    def _begin(self) -> None:
        """Start the observer. It may clear its earlier output, so this waits until the sweep certainly runs."""
        if not self._has_begun:
            self._has_begun = True
            self._calls.put(self._get_ready)

    def _get_ready(self, observer: Observer) -> None:
        self._last_seq = observer.seen()

    def _observe(self, observer: Observer, record: Record) -> None:
        if record.seq > self._last_seq:
            observer.observe(record)

    def _work(self, make: Callable[[], Observer], made: Future[Observer]) -> None:
        try:
            observer = make()
        except BaseException as error:  # a SystemExit would end the thread without a word
            made.set_exception(error)
            return
        made.set_result(observer)
        while not self._gone and not (self._closing.is_set() and self._calls.empty()):
            self._deliver(observer, self._calls.get())
            self._closing.wait(_BURST_SECONDS)
            while not self._calls.empty():
                self._deliver(observer, self._calls.get())
            self._deliver(observer, lambda observer: observer.flush())
        self._deliver(observer, lambda observer: observer.close())

    def _deliver(self, observer: Observer, call: _Call) -> None:
        if self._gone:
            return
        self._called_at = time.monotonic()
        try:
            call(observer)
        except BaseException as error:  # a SystemExit would end the thread without a word
            self._drop(f"{type(error).__name__}: {error}")
        finally:
            self._called_at = None

    def _drop(self, why: str) -> None:
        with self._lock:
            if self._gone:
                return
            self._gone = True
        while not self._calls.empty():  # all records of a study may be waiting in the queue
            with suppress(queue.Empty):
                self._calls.get_nowait()
        self._calls.put(_wake)
        self._say(f"{self.name} stopped: {why}. The sweep continues without it; {self._observer.remedy}.")


def _wake(observer: Observer) -> None:
    """Do nothing. This call wakes up the thread of a dropped observer."""


def close_all(threads: Sequence[ObserverThread]) -> None:
    """Close all observers in parallel, each within its own deadline."""
    for thread, until in [(thread, thread.begin_close()) for thread in threads]:
        thread.end_close(until)
