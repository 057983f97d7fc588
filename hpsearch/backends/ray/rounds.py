"""Rounds of workers with lanes: each takes new lanes along, and returns those that have ended."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from ray.exceptions import RayError

from hpsearch.backends.ray.inbox import Inbox
from hpsearch.backends.ray.messages import LaneEnd, RoundsEnd, RunRequest
from hpsearch.backends.slots import Flight, Slot
from hpsearch.task import Message

__all__ = ["Rounds"]

_AHEAD = 2
"""Rounds that are requested of a worker in advance, so that it doesn't wait for the driver."""


class Rounds:
    """Requests rounds of workers as long as they have lanes.

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
        landed: Callable[[Slot, Flight, LaneEnd], Sequence[Message]],
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
            messages += self._landed(slot, flights[end.trial, end.attempt], end)
        return messages
