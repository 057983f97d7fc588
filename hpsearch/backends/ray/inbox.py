"""Queue of answers from workers, which the driver's main thread reads."""

from __future__ import annotations

import functools
import pickle
import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from ray.exceptions import RayError

from hpsearch.backends.ray.messages import RoundsEnd, RunRequest, RunResponse
from hpsearch.backends.slots import Flight, Slot
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


_AHEAD = 2
"""Number of rounds requested from a worker in advance, so that it doesn't wait for the driver."""


class Rounds:
    """Requests rounds from workers while they have lanes.

    Args:
        inbox: Receives their answers.
        now: Returns the time.
        landed: Called with each lane that has ended.
        lost: Called with a lost worker and the exception of its call.
    """

    def __init__(
        self,
        inbox: Inbox,
        now: Callable[[], float],
        landed: Callable[[Slot, Flight, RunResponse], Sequence[Message]],
        lost: Callable[[Slot, RayError], Sequence[Message]],
    ) -> None:
        self._inbox = inbox
        self._now = now
        self._landed = landed
        self._lost = lost
        self._due: dict[Slot, None] = {}

    def enter(self, slot: Slot, request: RunRequest) -> None:
        """Add a segment to a worker, from its next round on."""
        slot.entering.append(request)
        self._due[slot] = None

    def ask(self) -> None:
        """Request the rounds that are due, once all messages have been handled.

        So lanes that start at the same time enter in the same round.
        """
        due, self._due = self._due, {}
        for slot in due:
            while slot.flights and slot.rounds < _AHEAD:
                if slot.rounds == 0:
                    slot.round_since = self._now()
                slot.rounds += 1
                new, slot.entering = slot.entering, []
                answer = slot.handle.round.remote(pickle.dumps(new, pickle.HIGHEST_PROTOCOL), slot.ends_heard)
                self._inbox.when_done(answer, functools.partial(self._answered, slot))

    def _answered(self, slot: Slot, future: Future[bytes]) -> Sequence[Message]:
        if slot.dead:
            return ()
        try:
            answer: RoundsEnd = pickle.loads(future.result())
        except RayError as error:
            return self._lost(slot, error)
        slot.rounds -= 1
        slot.round_since = self._now()
        slot.trained += answer.trained
        slot.ends_heard += len(answer.ends)
        self._due[slot] = None
        flights = {flight.task.key: flight for flight in slot.flights}
        messages: list[Message] = []
        for end in answer.ends:
            messages += self._landed(slot, flights[end.result.trial, end.result.attempt], end)
        return messages
