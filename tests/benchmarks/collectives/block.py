"""One contender's turn: some repetitions of the same thing, timed on every rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tests.benchmarks.collectives.meeting import Meeting

_LEAST, _MOST = 3, 300
_WARM_UP = 2


@dataclass(frozen=True, slots=True)
class Block:
    """A turn as one rank saw it."""

    contender: str
    subject: str
    """What was done: a size, a model."""
    round: int
    begins: tuple[int, ...]
    """Nanoseconds of the monotonic clock, which all processes of a machine share."""
    ends: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the block as values that JSON can hold."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class MeasuredTurn:
    """A turn as all ranks together saw it."""

    contender: str
    subject: str
    round: int
    seconds: tuple[float, ...]
    """Of each repetition: from the moment in which the last rank began to the moment in which the last was done."""


def take(
    meeting: Meeting,
    contender: str,
    subject: str,
    number: int,
    seconds: float,
    before: Callable[[], object],
    run: Callable[[], object],
) -> Block:
    """Warm up, and then repeat for about so many seconds; every rank repeats equally often.

    Args:
        meeting: Of all ranks.
        contender: Whose turn it is.
        subject: What is done.
        number: The round.
        seconds: How long the turn should take.
        before: Called before each repetition, and not timed: writes the gradients.
        run: What is timed.
    """
    for _ in range(_WARM_UP):
        before()
        meeting.wait()
        begin = time.monotonic_ns()
        run()
        took = time.monotonic_ns() - begin
    return repeat(
        meeting, contender, subject, number, repetitions(max(meeting.share(took / 1e9)), seconds), before, run
    )


def repeat(
    meeting: Meeting,
    contender: str,
    subject: str,
    number: int,
    count: int,
    before: Callable[[], object],
    run: Callable[[], object],
) -> Block:
    """Take a turn of so many repetitions, without warming up; for the arguments see `take`."""
    begins, ends = [], []
    for _ in range(count):
        before()
        meeting.wait()
        begins.append(time.monotonic_ns())
        run()
        ends.append(time.monotonic_ns())
    return Block(contender, subject, number, tuple(begins), tuple(ends))


def repetitions(once: float, seconds: float) -> int:
    """Return how often something that takes `once` seconds is repeated in a turn."""
    return max(_LEAST, min(_MOST, int(seconds / max(once, 1e-9))))


def combine(ranks: Sequence[Sequence[dict[str, Any]]]) -> list[MeasuredTurn]:
    """Put the blocks of all ranks together, which lie in the same order on each."""
    turns = []
    for views in zip(*ranks, strict=True):
        blocks = [Block(**view) for view in views]
        first = blocks[0]
        begins = [max(moments) for moments in zip(*(block.begins for block in blocks), strict=True)]
        ends = [max(moments) for moments in zip(*(block.ends for block in blocks), strict=True)]
        seconds = tuple((end - begin) / 1e9 for begin, end in zip(begins, ends, strict=True))
        turns.append(MeasuredTurn(first.contender, first.subject, first.round, seconds))
    return turns
