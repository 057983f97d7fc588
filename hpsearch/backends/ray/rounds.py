"""The rounds of workers that train trials beside each other: new lanes go out with one, those that ended come back."""

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
"""Rounds that a worker has been asked for at once, so that it doesn't wait for the driver between two."""


class Rounds:
    """Asks workers for rounds as long as they have lanes.

    Args:
        inbox: Where their answers go.
        now: Tells the time.
        landed: Called with each lane that has ended.
        lost: Called with a worker that won't come back, and what the call for it raised.
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
        """Let a worker train one more segment, which it was given, from its next round on."""
        slot.entering.append(request)
        self._due[slot] = None

    def ask(self) -> None:
        """Ask for the rounds that are due, once all is decided that follows from what has been heard.

        So lanes that are started at the same time enter in the same round.
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
