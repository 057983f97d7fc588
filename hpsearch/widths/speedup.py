"""Speedup of an iteration on several workers, estimated from the trials of the sweep.

Amdahl's law (1967): with w workers, an iteration takes

    t(w) = t(1) (s + (1 - s) / w)

where s is the serial share: the work that does not shrink with the batch, and the averaging of gradients. Trials of a
sweep differ much in t(1) and little in s. So s is estimated from the trials that have run at two widths, by comparing
each of these trials with itself, and used for all trials. If more workers take longer, s is above 1.

Before the first wide segment, s is assumed to be 0, and that segment is the probe. The first iteration of a segment has
cold caches, so it is only compared with other first iterations.

A segment also has overhead: mainly to build and load its model, and for a wide segment, to form its group of workers.
"""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from dataclasses import dataclass, field
from statistics import median

_RECENT = 8
"""Number of newest iterations of a trial at a width that are used, and of newest segments for the overhead."""

_LARGEST_SHARE = 2.0
"""Upper limit of the serial share. Above 1, more workers take longer."""

_TRIALS = 64
"""Number of newest trials whose shares are used, since the machines may change."""


@dataclass(slots=True)
class _Times:
    """Seconds of a trial's iterations at one width."""

    first: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    """First iterations of segments."""
    later: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    typical: float = 0.0
    """Median of the later iterations, or of the first ones if there are no others."""

    def add(self, seconds: float, first: bool) -> None:
        (self.first if first else self.later).append(seconds)
        self.typical = median(self.later or self.first)


class Speedup:
    """Estimates the serial share and the times of iterations."""

    def __init__(self) -> None:
        self._times: dict[int, dict[int, _Times]] = defaultdict(lambda: defaultdict(_Times))
        self._shares: dict[int, float] = {}  # by trial, the newest last
        self._typical: float | None = None
        self.serial_fraction = 0.0
        """The serial share s; 0 while nothing is measured."""

    def observe(self, trial: int, width: int, seconds: float, first: bool = False) -> None:
        """Add the time of an iteration.

        Args:
            trial: Number of the trial.
            width: Number of workers.
            seconds: Time of the iteration, above 0.
            first: Whether it was the first iteration of its segment.
        """
        times = self._times[trial]
        times[width].add(seconds, first)
        if len(times) > 1:
            self._shares.pop(trial, None)
            self._shares[trial] = _share_of(times)
            if len(self._shares) > _TRIALS:
                del self._shares[next(iter(self._shares))]
            self.serial_fraction = median(self._shares.values())
        self._typical = self.seconds(trial)

    def knows(self, trial: int) -> bool:
        """Return whether there are times of a trial."""
        return trial in self._times

    def forget(self, trial: int) -> None:
        """Remove the times of a finished trial. Its estimate of the share is kept."""
        self._times.pop(trial, None)

    @property
    def measured(self) -> bool:
        """Whether a trial has run at two widths."""
        return bool(self._shares)

    def relative_time(self, width: int) -> float:
        """Return the time of an iteration at a width, relative to one worker; always above 0."""
        return max(self.serial_fraction + (1.0 - self.serial_fraction) / width, 1e-3)

    def seconds(self, trial: int) -> float:
        """Return the time of an iteration of a trial on one worker; if the trial has not run, that of another trial."""
        times = self._times.get(trial)
        if not times:
            return 1.0 if self._typical is None else self._typical
        width = min(times)
        return times[width].typical / self.relative_time(width)


class Overhead:
    """Estimates the overhead of segments: their time outside iterations.

    Args:
        guess: Estimate in seconds until the first segment ends.
    """

    def __init__(self, guess: float) -> None:
        self._guess = guess
        self._seconds: dict[bool, deque[float]] = {wide: deque(maxlen=_RECENT) for wide in (False, True)}

    def observe(self, wide: bool, seconds: float) -> None:
        """Add the overhead of a segment, and whether it was wider than the minimum."""
        self._seconds[wide].append(max(seconds, 0.0))

    @property
    def segment(self) -> float:
        """Overhead in seconds of a segment that resumes with another width."""
        seconds = self._seconds[True] or self._seconds[False]
        return median(seconds) if seconds else self._guess

    @property
    def extra(self) -> float:
        """Additional overhead in seconds of a wide segment; 0 until it is measured."""
        narrow, wide = self._seconds[False], self._seconds[True]
        return max(median(wide) - median(narrow), 0.0) if narrow and wide else 0.0


def _share_of(times: dict[int, _Times]) -> float:
    """Estimate the share of a trial from each pair of consecutive widths."""
    return median(_share_between(times, *pair) for pair in itertools.pairwise(sorted(times)))


def _share_between(times: dict[int, _Times], narrow: int, wide: int) -> float:
    """Estimate the share from two widths: from later iterations if both have some, otherwise from first ones."""
    slow, fast = times[narrow], times[wide]
    if slow.later and fast.later:
        return _share(narrow, slow.typical, wide, fast.typical)
    return _share(narrow, median(slow.first or slow.later), wide, median(fast.first or fast.later))


def _share(narrow: int, slow: float, wide: int, fast: float) -> float:
    """Solve t(wide) / t(narrow) = (s + (1 - s) / wide) / (s + (1 - s) / narrow) for s."""
    ratio = fast / slow
    above = ratio / narrow - 1 / wide
    below = (1 - 1 / wide) - ratio * (1 - 1 / narrow)
    # If the wide iteration is slower than a fully serial one, no share explains it, and the width never pays off.
    return min(max(above / below, 0.0), _LARGEST_SHARE) if below > 0 else _LARGEST_SHARE
