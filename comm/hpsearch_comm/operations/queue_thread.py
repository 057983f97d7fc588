"""The thread that runs a group's asynchronous operations, one after another, in the order in which they were called."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from hpsearch_comm.operations.work import Handle

__all__ = ["QueueThread"]


class QueueThread:
    """Runs operations in order, away from the thread that asked for them.

    Args:
        name: Of the thread.
        on_start: Called first in the thread.
    """

    def __init__(self, name: str, on_start: Callable[[], object]) -> None:
        self._tasks: queue.SimpleQueue[tuple[Handle[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._last: Handle[Any] | None = None
        self._on_start = on_start
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Return whether every submitted operation has ended."""
        return self._last is None or self._last.done()

    def submit(self, name: str, task: Callable[[], Any]) -> Handle[Any]:
        """Queue an operation behind the others."""
        handle: Handle[Any] = Handle(name)
        self._last = handle
        self._tasks.put((handle, task))
        return handle

    def close(self) -> None:
        """Let the queued operations end, and the thread with them."""
        self._tasks.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        self._on_start()
        while (item := self._tasks.get()) is not None:
            handle, task = item
            try:
                result = task()
            except BaseException as error:  # it belongs to whoever waits for the handle
                handle.finish(error=error)
            else:
                handle.finish(result)
            # Nothing of an ended operation, tensors least of all, is kept until the next one.
            del item, handle, task
