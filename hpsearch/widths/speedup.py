"""How much quicker an iteration is on several workers, learned from the sweep's own trials.

Amdahl (1967): of an iteration's time on one worker a part can be divided, the rest can't, so with w workers it takes

    t(w) = t(1) (s + (1 - s) / w)

where s is the share that can't be divided: what doesn't shrink with the batch, and the averaging of gradients. Trials
of a sweep differ in their t(1) by a lot and in s by little. So s is estimated from trials that have run at two widths,
each compared with itself, and holds for all. If more workers take longer, s is above 1.

Nothing is known before the first wide segment: then it is taken for granted that work divides, and that segment is the
probe. The first iteration of a segment has caches to fill, so it is compared with other first ones only.

A segment also takes time beside its iterations, most of all to build and load its model; a wide one, to form its gang.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from dataclasses import dataclass, field
from statistics import median

__all__ = ["Overhead", "Speedup"]

_RECENT = 8
"""Iterations of a trial at a width that count, and segments whose overhead does: the newest."""

_HOPELESS = 2.0
"""The largest share: any above 1 says that more workers take longer."""

_TRIALS = 64
"""Trials whose shares count, the newest: the machines may have changed since."""


@dataclass(slots=True)
class _Times:
    """Seconds of a trial's iterations at one width."""

    first: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    """Of the first one in each segment."""
    later: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    typical: float = 0.0
    """The median of the later ones, or of the first ones where there are no others."""

    def add(self, seconds: float, first: bool) -> None:
        (self.first if first else self.later).append(seconds)
        self.typical = median(self.later or self.first)


class Speedup:
    """Times of iterations, and what follows from them; pure."""

    def __init__(self) -> None:
        self._times: dict[int, dict[int, _Times]] = defaultdict(lambda: defaultdict(_Times))
        self._shares: dict[int, float] = {}  # by trial, the newest last
        self._typical: float | None = None
        self.share = 0.0
        """The share of an iteration that more workers don't make quicker; 0 while nothing is known."""

    def observe(self, trial: int, width: int, seconds: float, first: bool = False) -> None:
        """Take the time of an iteration.

        Args:
            trial: Its number.
            width: How many workers ran it.
            seconds: What it took; above 0.
            first: It was the first one of its segment.
        """
        times = self._times[trial]
        times[width].add(seconds, first)
        if len(times) > 1:
            self._shares.pop(trial, None)
            self._shares[trial] = _share_of(times)
            if len(self._shares) > _TRIALS:
                del self._shares[next(iter(self._shares))]
            self.share = median(self._shares.values())
        self._typical = self.seconds(trial)

    def knows(self, trial: int) -> bool:
        """Say whether a trial has run, and not been forgotten."""
        return trial in self._times

    def forget(self, trial: int) -> None:
        """Let go of a trial that will run no more; what was learned from it stays."""
        self._times.pop(trial, None)

    @property
    def measured(self) -> bool:
        """Whether some trial has run at two widths."""
        return bool(self._shares)

    def relative_time(self, width: int) -> float:
        """Give the time of an iteration at a width, in units of that on one worker; always above 0."""
        return max(self.share + (1.0 - self.share) / width, 1e-3)

    def seconds(self, trial: int) -> float:
        """Give what an iteration of a trial takes on one worker; of one that has not run, what others took."""
        times = self._times.get(trial)
        if not times:
            return 1.0 if self._typical is None else self._typical
        width = min(times)
        return times[width].typical / self.relative_time(width)


class Overhead:
    """What segments take beside their iterations; pure."""

    def __init__(self, guess: float) -> None:
        """Take a guess, in seconds, which holds until the first segment has ended."""
        self._guess = guess
        self._seconds: dict[bool, deque[float]] = {wide: deque(maxlen=_RECENT) for wide in (False, True)}

    def observe(self, wide: bool, seconds: float) -> None:
        """Take what a segment took, and whether it was wider than it had to be."""
        self._seconds[wide].append(max(seconds, 0.0))

    @property
    def segment(self) -> float:
        """Seconds beside the iterations of a segment that goes on with another width."""
        known = self._seconds[True] or self._seconds[False]
        return median(known) if known else self._guess

    @property
    def extra(self) -> float:
        """Seconds by which that is more for a wide segment; 0 until it is known."""
        narrow, wide = self._seconds[False], self._seconds[True]
        return max(median(wide) - median(narrow), 0.0) if narrow and wide else 0.0


def _share_of(times: dict[int, _Times]) -> float:
    """Estimate a trial's share from each two of its widths that are neighbours."""
    return median(_share_between(times, *pair) for pair in itertools.pairwise(sorted(times)))


def _share_between(times: dict[int, _Times], narrow: int, wide: int) -> float:
    """Estimate the share from two widths, comparing later iterations if both have some, and first ones otherwise."""
    slow, fast = times[narrow], times[wide]
    if slow.later and fast.later:
        return _share(narrow, slow.typical, wide, fast.typical)
    return _share(narrow, median(slow.first or slow.later), wide, median(fast.first or fast.later))


def _share(narrow: int, slow: float, wide: int, fast: float) -> float:
    """Solve t(wide) / t(narrow) = (s + (1 - s) / wide) / (s + (1 - s) / narrow) for s."""
    ratio = fast / slow
    above = ratio / narrow - 1 / wide
    below = (1 - 1 / wide) - ratio * (1 - 1 / narrow)
    # Where it took much longer than all of it undivided, no share explains it: such a width never pays.
    return min(max(above / below, 0.0), _HOPELESS) if below > 0 else _HOPELESS
