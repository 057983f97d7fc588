"""Repeats of a configuration with several seeds: the value that follows from theirs, and the test that compares two."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from hpsearch.config.checks import InvalidKey
from hpsearch.config.settings import AtLeast, Count, Settings

FIRST_TEST = 3
"""Number of repeats after which a race first eliminates configurations."""

SIGNIFICANT = 0.05
"""A difference with a smaller p-value isn't noise."""


@dataclass(frozen=True)
class Repeats(Settings):
    """How often each configuration is trained, and how its value follows from that."""

    n: Count = 1
    """Trainings of each configuration; each is a trial. Repeat r of all configurations has the same seed, so that they
    are compared in pairs."""
    quantile: Annotated[float, AtLeast(0)] | None = None
    """A configuration's value is this quantile of its repeats' values, from 0 to 1; none: their mean."""
    racing: bool = False
    """`true`: from the third repeat on, a configuration is eliminated once a paired t-test shows that it is worse
    than the best."""

    def check(self) -> None:
        """Check the quantile, and that a race can eliminate configurations."""
        if self.quantile is not None and self.quantile > 1:
            raise InvalidKey(("quantile",), f"must be from 0 to 1, got {self.quantile}")
        if self.racing and self.n <= FIRST_TEST:
            problem = f"must be more than {FIRST_TEST} where racing is true, got {self.n}"
            raise InvalidKey(("n",), problem, f"a race eliminates none before it has {FIRST_TEST} repeats of each")
        if self.racing and self.quantile is not None:
            raise InvalidKey(("quantile",), "must not be given where racing is true, which compares means", "remove it")

    @property
    def several(self) -> bool:
        """Whether configurations are repeated."""
        return self.n > 1

    @property
    def statistic(self) -> str:
        """Name of the value of a configuration, as a column."""
        return "mean" if self.quantile is None else "quantile"

    def value(self, values: Sequence[float]) -> float:
        """Return a configuration's value, from the values of its repeats, at least one; NaN if one of them is NaN.

        A quantile is interpolated linearly, as by default in NumPy.
        """
        if self.quantile is None:
            return mean(values)
        if any(map(math.isnan, values)):
            return math.nan
        ordered = sorted(values)
        below, share = divmod(self.quantile * (len(ordered) - 1), 1)
        low = ordered[int(below)]
        return low if share == 0 else (1 - share) * low + share * ordered[int(below) + 1]


def mean(values: Sequence[float]) -> float:
    """Return the mean of at least one value; NaN if they contain both infinities."""
    return statistics.mean(values)


def deviation(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation (n - 1); None for fewer than two values, NaN if one isn't finite."""
    if len(values) < 2:
        return None
    try:
        return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan
    except OverflowError:
        return math.inf


def paired_p_value(values: Sequence[float], others: Sequence[float]) -> float:
    """Return the two-sided p-value of Student's paired t-test for equal means.

    If no test is possible, since a value isn't finite or all differences are equal, the p-value is 1 for equal means,
    else 0, as in irace (López-Ibáñez et al., "The irace package", Operations Research Perspectives 3, 2016).

    Args:
        values: Values of one configuration, at least two.
        others: Values of another one, with the same seeds.
    """
    differences = [value - other for value, other in zip(values, others, strict=True)]
    scale = max(map(abs, differences))
    if not all(map(math.isfinite, differences)):
        first, second = mean(values), mean(others)
        return 1.0 if first == second or math.isnan(first) or math.isnan(second) else 0.0
    if scale == 0:
        return 1.0
    scaled = [difference / scale for difference in differences]  # so that no square overflows
    spread = statistics.stdev(scaled)
    if spread == 0:
        return 0.0
    return _two_sided(abs(mean(scaled)) / spread * math.sqrt(len(scaled)), len(scaled) - 1)


def _two_sided(t: float, freedom: int) -> float:
    """Return the probability of more than `t` or less than `-t` under Student's t distribution.

    Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(freedom))
    square = math.cos(angle) ** 2
    odd = freedom % 2
    term, total = (math.cos(angle) if odd else 1.0), 0.0
    for step in range(2 + odd, freedom + 1, 2):
        total += term
        term *= square * (step - 1) / step
    inside = math.sin(angle) * total
    return max(0.0, 1.0 - (2 / math.pi * (angle + inside) if odd else inside))
