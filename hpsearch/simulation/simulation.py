"""The seam between the simulated backend and what it runs in place of a trainable."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from hpsearch.errors import SweepError, TrainableError
from hpsearch.space import Space
from hpsearch.trial import Segment, Trial

__all__ = [
    "EFFICIENCY",
    "RecordedFailure",
    "Simulation",
    "Step",
    "relative_time",
    "to_seconds",
]

EFFICIENCY = 0.9
"""Default efficiency of doubling a trial's workers: 0.9 of twice the speed."""


class RecordedFailure(Exception):
    """A trial fails here as it did when it was recorded; the text is its message."""


@dataclass(frozen=True, slots=True)
class Step:
    """One iteration."""

    metrics: Mapping[str, float]
    seconds: float
    """Its seconds on one worker."""
    state: bytes | None = None
    """State for the next iteration; None if that depends only on params and seed."""


class Simulation(ABC):
    """Simulates the iterations of trials. Equal trials must have equal iterations, in every process."""

    simulated: ClassVar[bool] = True
    """Distinguishes it from trainables."""

    start_seconds: float = 0.0
    """Before each segment's first iteration: a process, data, a checkpoint to read."""
    checkpoint_seconds: float = 0.0
    """For the checkpoint at a segment's end."""
    has_state: ClassVar[bool] = False
    """Its steps have states, which checkpoints keep."""
    has_checkpoints: bool = True
    """False: promoted trials start from zero."""
    efficiency: float = EFFICIENCY
    """Efficiency of doubling a trial's workers, as a fraction of twice the speed."""

    def open(self, space: Space, *metrics: str) -> None:
        """Prepare for the trials of a sweep.

        Args:
            space: The space of their params.
            metrics: Metrics that each iteration must report.

        Raises:
            SweepError: They don't match, or its durations are invalid.
        """
        self.space, self.metrics = space, metrics
        for name in ("start_seconds", "checkpoint_seconds"):
            if not 0 <= getattr(self, name) < math.inf:
                problem = f"must be a number, at least 0, got {getattr(self, name)!r}"
                raise SweepError(f"{type(self).__name__}.{name} {problem}")
        if not 0 < self.efficiency <= 1:
            raise SweepError(
                f"{type(self).__name__}.efficiency must be more than 0, at most 1, got {self.efficiency!r}"
            )

    def speed(self, width: int) -> float:
        """Return how many times as fast so many workers run an iteration as one does."""
        return 1.0 / relative_time(width, self.efficiency)

    @abstractmethod
    def steps(self, trial: Trial, segment: Segment, state: bytes | None) -> Iterator[Step]:
        """Yield the iterations of a segment, from `segment.start` to its end or beyond.

        There are fewer if the trial ends. An exception is the trial's failure, after the iterations before.

        Args:
            trial: The trial.
            segment: The segment; its end may be None.
            state: State after the previous iteration; None at the beginning.
        """


def relative_time(width: int, efficiency: float = EFFICIENCY) -> float:
    """Return the time of an iteration at a width, in units of that on one worker.

    Args:
        width: How many workers run it.
        efficiency: What each doubling of the width is worth, as a share of twice the speed.
    """
    return float(1.0 / (width * efficiency ** math.log2(width)))


def to_seconds(value: object) -> float:
    """Check the duration of an iteration.

    Raises:
        TrainableError: It isn't a number, or less than 0.
    """
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise TrainableError(f"the seconds of an iteration must be a number, at least 0, got {value!r}")
    return seconds
