"""What may wait, each in a thread of its own, and signals: the main thread waits for a queue of events alone."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

CHUNK = 1 << 16
_MUCH = 1 << 20
"""Bytes in a queue from which on a `Writer` has no room."""


def start_thread(target: Callable[..., object], *arguments: object) -> None:
    """Run a function in a thread that nobody waits for when the process ends."""
    threading.Thread(target=target, args=arguments, daemon=True).start()


def read_chunks(descriptor: int) -> Iterator[bytes]:
    """Yield what a stream brings, until its end or until it can't be read."""
    with contextlib.suppress(OSError):
        while data := os.read(descriptor, CHUNK):
            yield data


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it, and wait as long as it takes.

    Raises:
        OSError: It can't be written, such as that nobody reads a pipe any more.
    """
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]


class Writer:
    """Writes in a thread: a pager may be left alone for hours, and another host may not answer.

    What is left to write is bounded: whoever passes on what others write waits for room first.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[int, bytes | None] | None] = queue.SimpleQueue()
        self._waiting = 0
        self._changed = threading.Condition()
        self._abandoned = False
        self.error: OSError | None = None
        """Why nothing can be written any more, such as that nobody reads a pipe."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def write(self, descriptor: int, data: bytes) -> None:
        """Queue data to be written, in order."""
        with self._changed:
            self._waiting += len(data)
        self._queue.put((descriptor, data))

    def close(self, descriptor: int) -> None:
        """Close a descriptor when all before is written, and write nothing more: its number may be another one's."""
        self._queue.put((descriptor, None))

    @property
    def is_idle(self) -> bool:
        """Whether all is written, or can't be."""
        return not self._waiting

    def wait_for_room(self) -> bool:
        """Wait until little is left to write; return whether there is still somebody for whom more is of use."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting <= _MUCH or self._abandoned)
        return not self._abandoned

    def abandon(self) -> None:
        """Let nobody wait for room any more."""
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()

    def finish(self) -> None:
        """Wait until all is written. The thread has ended then."""
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
            with self._changed:
                self._waiting -= len(data)
                self._changed.notify_all()


@contextlib.contextmanager
def handle_signals(numbers: Sequence[int], handler: Callable[[int], object]) -> Iterator[None]:
    """Have signals handled as long as the context lasts. One that is ignored, as by nohup, stays so."""
    handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    former: dict[int, Any] = {number: signal.signal(number, lambda number, _: handler(number)) for number in handled}
    try:
        yield
    finally:
        for number, previous in former.items():
            signal.signal(number, previous)
