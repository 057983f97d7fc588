"""Allocation of workers to segments.

Every trial gets its minimum first: no trial is widened while another one waits. Remaining workers widen the trials that
start, so that all workers stay busy when a bracket narrows. Trials of a rung are compared with each other, so they get
the same width. The rung that is predicted to end last is widened if there are enough workers for all its trials, and if
it is predicted to end sooner. This is repeated with the rung that is then predicted to end last.

    27 workers, eta 3         rung 0: 27 trials, 1 worker each      rung 2: 3 trials, 9 workers each
                              rung 1:  9 trials, 3 workers each     rung 3: 1 trial, 27 workers
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

_GAIN = 0.95
"""A wider segment must be predicted to take at most this share of the time. Predictions are not more accurate."""


@dataclass(frozen=True, slots=True)
class Demand:
    """A segment that could start."""

    rung: Hashable
    """Identifies its rung: the segments that it is compared with."""
    seconds: float
    """Predicted time of its iterations on one worker, in the same unit for all demands. If 0, it is not widened."""
    most: int | None = None
    """Maximum number of workers; None: no own limit."""
    owned: int = 0
    """Workers that the segment already has and keeps. They are not among the free workers."""


@dataclass(slots=True)
class _Rung:
    """The segments of a rung."""

    width: int
    """Minimum number of workers of each segment."""
    most: int
    seconds: float = 0.0
    owned: list[int] = field(default_factory=list)

    def missing(self, width: int) -> int:
        """Return the number of workers that are needed to bring all segments to a width."""
        return sum(max(width - max(self.width, owned), 0) for owned in self.owned)


def allocate(
    free: int,
    demands: Sequence[Demand],
    least: int,
    most: int,
    relative_time: Callable[[int], float],
    extra: float = 0.0,
) -> list[int]:
    """Return the width of each segment.

    Args:
        free: Number of free workers.
        demands: The segments, in the order in which they start.
        least: Minimum number of workers of a trial.
        most: Maximum number of workers of a trial.
        relative_time: Returns the time of an iteration at a width, relative to one worker.
        extra: Additional time of a segment that is wider than `least`, in the unit of the demands.

    Returns:
        The widths of the first demands, as many as there are workers for.
    """
    rungs: dict[Hashable, _Rung] = {}
    started: list[Demand] = []
    for demand in demands:
        free -= max(least - demand.owned, 0)
        if free < 0:
            break
        started.append(demand)
        width = max(least, demand.owned)
        rung = rungs.setdefault(demand.rung, _Rung(width, most))
        rung.width = min(rung.width, width)
        rung.most = rung.most if demand.most is None else min(rung.most, demand.most)
        rung.seconds = max(rung.seconds, demand.seconds)
        rung.owned.append(width)
    free = free if len(started) == len(demands) else 0

    def time(rung: _Rung, width: int) -> float:
        return rung.seconds * relative_time(width) + (extra if width > least else 0.0)

    # A heap: the rung that ends last first. Ties are broken by order, so that the result is deterministic.
    growing = [(-time(rung, rung.width), order, rung) for order, rung in enumerate(rungs.values())]
    heapify(growing)
    while growing:
        ends, order, last = heappop(growing)
        required = -ends * (_GAIN if last.width == least else 1.0)
        width = last.width + 1
        while width <= last.most and last.missing(width) <= free and time(last, width) >= required:
            width += 1
        if width <= last.most and last.missing(width) <= free:
            free -= last.missing(width)
            last.width = width
            heappush(growing, (-time(last, width), order, last))
    return [max(rungs[demand.rung].width, demand.owned) for demand in started]
