"""Blocking reads and writes in threads, and signal handling. The main thread waits only for its event queue."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

CHUNK = 1 << 16
_MUCH = 1 << 20
"""Queued bytes above which a `Writer` has no room."""
_POLL_SECONDS = 0.01


def start_thread(target: Callable[..., object], *arguments: object) -> None:
    """Run a function in a daemon thread."""
    threading.Thread(target=target, args=arguments, daemon=True).start()


def write_all(descriptor: int, data: bytes) -> None:
    """Write all data, and block until it is written.

    Raises:
        OSError: The data can't be written, for example because the reader of a pipe has closed it.
    """
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]


class Writer:
    """Writes in a thread, because writes can block: a pager may wait for hours, and a host may not answer.

    To limit the queue, callers that forward output call `wait_for_room` first.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[int, bytes | None] | None] = queue.SimpleQueue()
        self._waiting = 0
        self._lock = threading.Lock()
        self._abandoned = False
        self.error: OSError | None = None
        """The error of the first failed write, after which nothing more is written; None if there is none."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def write(self, descriptor: int, data: bytes) -> None:
        """Queue data to be written, in order."""
        with self._lock:
            self._waiting += len(data)
        self._queue.put((descriptor, data))

    def close(self, descriptor: int) -> None:
        """Close a descriptor after all queued data is written. Then write nothing more: the number may be reused."""
        self._queue.put((descriptor, None))

    @property
    def is_idle(self) -> bool:
        """Whether no data is waiting to be written."""
        return not self._waiting

    @property
    def has_room(self) -> bool:
        """Whether more output may be queued, or the writer was abandoned."""
        return self._waiting <= _MUCH or self._abandoned

    def wait_for_room(self) -> bool:
        """Wait until the queue has room; return False if the writer was abandoned, so that output is of no use."""
        while not self.has_room:
            time.sleep(_POLL_SECONDS)
        return not self._abandoned

    def abandon(self) -> None:
        """Make `wait_for_room` return False immediately, for all current and later calls."""
        self._abandoned = True

    def finish(self) -> None:
        """Wait until all data is written and the thread has ended."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            descriptor, data = item
            if data is None:
                os.close(descriptor)
                return
            if self.error is None:
                try:
                    write_all(descriptor, data)
                except OSError as error:
                    self.error = error
            with self._lock:
                self._waiting -= len(data)


@contextlib.contextmanager
def handle_signals(numbers: Sequence[int], handler: Callable[[int], object]) -> Iterator[None]:
    """Handle signals within the context. Signals that are ignored, as with nohup, stay ignored."""
    handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    former: dict[int, Any] = {number: signal.signal(number, lambda number, _: handler(number)) for number in handled}
    try:
        yield
    finally:
        for number, previous in former.items():
            signal.signal(number, previous)
