"""How many workers each segment gets: a pure function of the free workers and of what could run on them.

Trials come first: no trial is widened while another waits for its first worker. What is left when nothing else can be
started widens those that are, so that a bracket that narrows keeps its workers busy. Trials of one rung are compared
with each other, so they run alike: the rung that is predicted to end last is widened, if there are workers enough for
all of its trials and if it is predicted to end sooner with them; then the one that now ends last, and so on.

    27 workers, eta 3         rung 0: 27 trials, 1 worker each      rung 2: 3 trials, 9 workers each
                              rung 1:  9 trials, 3 workers each     rung 3: 1 trial, 27 workers
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

__all__ = ["Demand", "allocate"]

_GAIN = 0.95
"""Wide segments must be predicted to take this share of the time or less: no prediction is better than that."""


@dataclass(frozen=True, slots=True)
class Demand:
    """A segment that could start."""

    rung: Hashable
    """What it has in common with the segments that it is compared with."""
    seconds: float
    """What its iterations would take on one worker; in any unit, the same for all demands. Of 0 it is not widened."""
    most: int | None = None
    """Workers that it may have; None: as many as any."""
    held: int = 0
    """Workers that it has already, and keeps, which are not among the free ones."""


@dataclass(slots=True)
class _Rung:
    """The segments of a rung."""

    width: int
    """Workers that each of them has at least."""
    most: int
    seconds: float = 0.0
    held: list[int] = field(default_factory=list)

    def missing(self, width: int) -> int:
        """Count the workers that it takes to bring all of them to a width."""
        return sum(max(width - max(self.width, held), 0) for held in self.held)


def allocate(
    free: int,
    demands: Sequence[Demand],
    least: int,
    most: int,
    relative_time: Callable[[int], float],
    extra: float = 0.0,
) -> list[int]:
    """Say how wide each segment runs.

    Args:
        free: Workers that have nothing to do.
        demands: In the order in which they are to start.
        least: Workers that a trial needs, from 1.
        most: Workers that a trial may have.
        relative_time: The time of an iteration at a width, in units of that on one worker.
        extra: What a segment wider than `least` takes beside its iterations and others don't; unit of the demands.

    Returns:
        The widths of the first demands, as many as have room.
    """
    rungs: dict[Hashable, _Rung] = {}
    started: list[Demand] = []
    for demand in demands:
        free -= max(least - demand.held, 0)
        if free < 0:
            break
        started.append(demand)
        width = max(least, demand.held)
        rung = rungs.setdefault(demand.rung, _Rung(width, most))
        rung.width = min(rung.width, width)
        rung.most = rung.most if demand.most is None else min(rung.most, demand.most)
        rung.seconds = max(rung.seconds, demand.seconds)
        rung.held.append(width)
    free = free if len(started) == len(demands) else 0

    def time(rung: _Rung, width: int) -> float:
        return rung.seconds * relative_time(width) + (extra if width > least else 0.0)

    # A heap: the one that ends last first; of equals the first one, so that the same call gives the same answer.
    growing = [(-time(rung, rung.width), order, rung) for order, rung in enumerate(rungs.values())]
    heapify(growing)
    while growing:
        ends, order, last = heappop(growing)
        enough = -ends * (_GAIN if last.width == least else 1.0)
        width = last.width + 1
        while width <= last.most and last.missing(width) <= free and time(last, width) >= enough:
            width += 1
        if width <= last.most and last.missing(width) <= free:
            free -= last.missing(width)
            last.width = width
            heappush(growing, (-time(last, width), order, last))
    return [max(rungs[demand.rung].width, demand.held) for demand in started]
