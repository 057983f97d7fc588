"""How much quicker an iteration is on several workers, learned from the sweep's own trials.

Amdahl (1967): of an iteration's time on one worker a part can be divided, the rest can't, so with w workers it takes

    t(w) = t(1) (s + (1 - s) / w)

where s is the share that can't be divided: what doesn't shrink with the batch, and the averaging of gradients. Trials
of a sweep differ in their t(1) by a lot and in s by little. So s is estimated from trials that have run at two widths,
each compared with itself, and holds for all. If more workers take longer, s is above 1.

Nothing is known before the first wide segment: then it is taken for granted that work divides, and that segment is the
probe.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from statistics import median

__all__ = ["Speedup"]

_RECENT = 8
"""Iterations of a trial at a width that count: what came first had caches to fill."""


class Speedup:
    """Times of iterations, and what follows from them; pure."""

    def __init__(self) -> None:
        self._times: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._share: float | None = None

    def observe(self, trial: int, width: int, seconds: float) -> None:
        """Take the time of an iteration.

        Args:
            trial: Its number.
            width: How many workers ran it.
            seconds: What it took; above 0.
        """
        times = self._times[trial][width]
        times.append(seconds)
        del times[:-_RECENT]
        if len(self._times[trial]) > 1:
            self._share = None  # to be estimated anew

    @property
    def share(self) -> float:
        """The share of an iteration that more workers don't make quicker; 0 while nothing is known."""
        if self._share is None:
            found = [share for trial in self._times.values() for share in _shares(trial)]
            self._share = median(found) if found else 0.0
        return self._share

    def relative_time(self, width: int) -> float:
        """Give the time of an iteration at a width, in units of that on one worker; always above 0."""
        share = self.share
        return max(share + (1.0 - share) / width, 1e-3)


def _shares(trial: dict[int, list[float]]) -> list[float]:
    """Estimate the share from each two widths of a trial that are neighbours."""
    widths = sorted(trial)
    return [
        _share(narrow, median(trial[narrow]), wide, median(trial[wide])) for narrow, wide in itertools.pairwise(widths)
    ]


def _share(narrow: int, slow: float, wide: int, fast: float) -> float:
    """Solve t(wide) / t(narrow) = (s + (1 - s) / wide) / (s + (1 - s) / narrow) for s."""
    ratio = fast / slow
    above = ratio / narrow - 1 / wide
    below = (1 - 1 / wide) - ratio * (1 - 1 / narrow)
    # Where it took even longer than all of it undivided, any share is too small: such a width never pays.
    return max(above / below, 0.0) if below > 0 else 2.0
