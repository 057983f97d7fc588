"""What the trials of a sweep took, and what those to come cost by that."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Batch", "Cost", "Pace", "Running", "mean_beside"]

SELECTED = 0.6
"""Standard deviations of a trial's pace by which those that are promoted may differ from all."""


@dataclass(slots=True)
class Pace:
    """What a trial's iterations took, in seconds of one worker."""

    first: float = 0.0
    """The first one of a segment, which may have had to warm up."""
    seconds: float = 0.0
    iterations: int = 0
    """Without the first one of each segment."""
    until: int = 0
    """The last iteration that was taken."""
    factor: float = 1.0
    """Its part of a round beside the average trial's, the newest rounds counting most."""

    @property
    def mean(self) -> float:
        """That of an iteration; the first one's where there is no other."""
        return self.seconds / self.iterations if self.iterations else self.first


@dataclass(slots=True)
class Running:
    """A segment that runs."""

    began: float
    start: int
    end: int | None
    width: int
    bracket: int | None
    rung: int | None
    reported: int = 0
    charged: float = 0.0
    """Worker seconds, of what was reported."""
    seen: tuple[float, float] = 0.0, 0.0
    """When it was heard of, and what all segments had run for by then together, in seconds."""
    beside: float = 0.0
    """How many ran then, itself among them."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Trials that have to run on, of which it isn't known which."""

    trials: float
    iterations: float
    """Of each."""
    selected: bool
    """They are the best of others, and go on from a checkpoint."""
    doubt: float = 0.0
    """Standard error of `trials`."""


def mean_beside(beside: Mapping[bool, Collection[float]]) -> dict[bool, float]:
    """Give the mean worker seconds of segments beside their iterations: of those from zero, and of those that go on."""
    return {from_zero: statistics.fmean(known or [0.0]) for from_zero, known in beside.items()}


class Cost:
    """What iterations cost that are still to be run, by those of the trials so far."""

    def __init__(self, paces: Mapping[int, float], beside: Mapping[bool, Collection[float]], ran: float) -> None:
        """Take what is known.

        Args:
            paces: Worker seconds per iteration, by trial.
            beside: Worker seconds of segments beside their iterations: of those from zero, and of those that go on.
            ran: The part of their iterations that segments ran.
        """
        self.mean = statistics.fmean(paces.values())
        off = sum((pace - self.mean) ** 2 for pace in paces.values())
        self._spread = math.sqrt(off / (len(paces) - 1)) if len(paces) > 1 else self.mean
        self._known = len(paces)
        self._ran = ran
        self._beside = mean_beside(beside)

    def of(self, batch: Batch) -> float:
        """Give the worker seconds of trials."""
        return batch.trials * (self._ran * batch.iterations * self.mean + self._beside[not batch.selected])

    def off(self, batches: Sequence[Batch]) -> float:
        """Give the standard error of the worker seconds of all."""
        iterations = sum(batch.trials * batch.iterations for batch in batches)
        own = sum(batch.trials * (batch.iterations * self._spread) ** 2 for batch in batches)
        selected = sum(batch.trials * batch.iterations for batch in batches if batch.selected)
        shared = iterations * self._spread / math.sqrt(self._known)
        shares = sum(batch.doubt * batch.iterations for batch in batches) * self.mean
        return math.hypot(shared, math.sqrt(own), shares) + SELECTED * selected * self._spread
