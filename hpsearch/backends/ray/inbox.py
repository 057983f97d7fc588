"""What came from the workers, to be taken in the driver's own thread."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from hpsearch.task import Message

__all__ = ["Inbox"]


class Inbox:
    """Answers that came, and what is to be done with each; filled from any thread."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], Sequence[Message]]] = queue.SimpleQueue()

    def put(self, message: Message) -> None:
        """Add a message of the driver's own."""
        self._queue.put(lambda: [message])

    def when_done(self, ref: Any, take: Callable[[Future[Any]], Sequence[Message]]) -> None:
        """Let `take` have the answer of a remote call, an `ObjectRef`, once it is there."""
        ref.future().add_done_callback(lambda future: self._queue.put(lambda: take(future)))

    def take(self, timeout: float | None, pause: float = 0.0) -> list[Message]:
        """Give the messages of all that came; wait for the first up to `timeout` seconds, and then `pause` for more."""
        messages: list[Message] = []
        try:
            messages += self._queue.get(timeout=timeout)()
            if pause:
                time.sleep(pause)
            while True:
                messages += self._queue.get_nowait()()
        except queue.Empty:
            return messages
