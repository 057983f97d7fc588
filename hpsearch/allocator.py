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
from dataclasses import dataclass

__all__ = ["Demand", "allocate"]

_GAIN = 0.95
"""Wide segments must be predicted to take this share of the time or less: no prediction is better than that."""


@dataclass(frozen=True, slots=True)
class Demand:
    """A segment that could start."""

    rung: Hashable
    """What it has in common with the segments that it is compared with."""
    seconds: float
    """What it would take on one worker; in any unit, the same for all demands."""


@dataclass(slots=True)
class _Rung:
    """The segments of a rung that start now."""

    width: int
    count: int = 0
    seconds: float = 0.0


def allocate(
    free: int, demands: Sequence[Demand], least: int, most: int, relative_time: Callable[[int], float]
) -> list[int]:
    """Say how wide each segment runs.

    Args:
        free: Workers that have nothing to do.
        demands: In the order in which they are to start.
        least: Workers that a trial needs, from 1.
        most: Workers that a trial may have.
        relative_time: The time of an iteration at a width, in units of that on one worker.

    Returns:
        The widths of those demands that start now: the first ones, as many as have room.
    """
    started = demands[: free // least]
    free -= least * len(started)
    rungs: dict[Hashable, _Rung] = {}
    for demand in started:
        rung = rungs.setdefault(demand.rung, _Rung(least))
        rung.count += 1
        rung.seconds = max(rung.seconds, demand.seconds)
    growing = list(rungs.values())
    while growing:
        # Of equals the first one, so that the same call gives the same answer.
        last = max(growing, key=lambda rung: rung.seconds * relative_time(rung.width))
        enough = relative_time(last.width) * (_GAIN if last.width == least else 1.0)
        affordable = range(last.width + 1, min(most, last.width + free // last.count) + 1)
        width = next((width for width in affordable if relative_time(width) < enough), None)
        if width is None:
            growing.remove(last)
        else:
            free -= (width - last.width) * last.count
            last.width = width
    return [rungs[demand.rung].width for demand in started]
