"""Writes to the launcher's own standard output and error, in a thread: a pager may be left alone for hours.

What is left to write is bounded: whoever writes looks at `is_full` first.
"""

from __future__ import annotations

import os
import queue
import threading

__all__ = ["Writer"]

_MUCH = 1 << 20


class Writer:
    """One thread for both streams, so that what goes to one terminal keeps its order."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self._waiting = 0
        self._lock = threading.Lock()
        self.error: OSError | None = None
        """Why nothing can be written any more, such as that nobody reads a pipe."""
        # Nobody waits for it once the launcher is to end at once.
        self._thread = threading.Thread(target=self._run, name="hpsearch-comm-launch-writer", daemon=True)
        self._thread.start()

    def write(self, descriptor: int, data: bytes) -> None:
        """Queue data to be written, in order."""
        with self._lock:
            self._waiting += len(data)
        self._queue.put((descriptor, data))

    @property
    def is_full(self) -> bool:
        """Whether much waits to be written."""
        return self._waiting > _MUCH

    def finish(self) -> None:
        """Wait until all is written. The thread has ended then."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            descriptor, data = item
            if self.error is None:
                try:
                    _write_all(descriptor, data)
                except OSError as error:
                    self.error = error
            with self._lock:
                self._waiting -= len(data)


def _write_all(descriptor: int, data: bytes) -> None:
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]
