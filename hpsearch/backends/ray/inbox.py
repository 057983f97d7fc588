"""Queue of answers from workers, which the driver's main thread reads."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from hpsearch.task import Message


class Inbox:
    """A queue of answers and their handlers, filled from any thread."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], Sequence[Message]]] = queue.SimpleQueue()

    def put(self, message: Message) -> None:
        """Add a message of the driver's own."""
        self._queue.put(lambda: [message])

    def when_done(self, ref: Any, take: Callable[[Future[Any]], Sequence[Message]]) -> None:
        """Queue the answer of a remote call, an `ObjectRef`, once it has arrived."""
        ref.future().add_done_callback(lambda future: self._queue.put(lambda: take(future)))

    def take(self, timeout: float | None, pause: float = 0.0) -> list[Message]:
        """Return all new messages; wait up to `timeout` seconds for the first, then `pause` seconds for more."""
        messages: list[Message] = []
        try:
            messages += self._queue.get(timeout=timeout)()
            if pause:
                time.sleep(pause)
            while True:
                messages += self._queue.get_nowait()()
        except queue.Empty:
            return messages
