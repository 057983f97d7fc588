"""A simulation from two functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from hpsearch.backends.simulated import SimulatedBackend
from hpsearch.simulation import Simulation, Step
from hpsearch.trial import Segment, Trial


class Functions(Simulation):
    """A simulation with given metrics by trial and iteration, and durations by segment, widths included.

    Args:
        metric: The metric of a trial at the end of an iteration.
        seconds: What a segment takes at its width, asked when it starts: each of its iterations takes its share.
        checkpoints: False: promotions start from zero.
        name: The metric's, where no sweep says it.
    """

    def __init__(
        self,
        metric: Callable[[Trial, int], float],
        seconds: Callable[[Trial, Segment], float],
        checkpoints: bool = True,
        name: str = "loss",
    ) -> None:
        self._metric, self._seconds, self.metrics = metric, seconds, (name,)
        self.has_checkpoints = checkpoints

    def speed(self, width: int) -> float:
        return 1.0

    def steps(self, trial: Trial, segment: Segment, state: bytes | None) -> Iterator[Step]:
        end = segment.start + 1 if segment.end is None else segment.end
        each = self._seconds(trial, segment) / (end - segment.start)
        for iteration in range(segment.start + 1, end + 1):
            yield Step(dict.fromkeys(self.metrics, self._metric(trial, iteration)), each)


def simulated_backend(workers: int, *functions: Any, live: bool = True, **named: Any) -> SimulatedBackend:
    """Make a backend of so many workers, where the arguments of `Functions` say what happens."""
    return SimulatedBackend(workers, Functions(*functions, **named), live)
