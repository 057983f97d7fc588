"""Statistics of small samples: quartiles, confidence intervals and significance tests."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from ctypes import c_float
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles over the runs of a side.

    A quartile is None if it depends on a run without a value, or on two opposite infinities.
    """

    median: float | None
    low: float | None
    """The lower quartile."""
    high: float | None
    """The upper quartile, never below `low`."""


def spread(values: Sequence[float | None], more_is_better: bool) -> Spread:
    """Return the median and quartiles; None is worse than all numbers, infinite ones included.

    Args:
        values: Value of each run, or None. A quantile between a number and None is None.
        more_is_better: Whether higher is better. Then None is below all numbers, otherwise above them.
    """
    present = sorted(value for value in values if value is not None)
    absent = [None] * (len(values) - len(present))
    ordered = [*absent, *present] if more_is_better else [*present, *absent]
    return Spread(*(_quantile(ordered, quantile) for quantile in (0.5, 0.25, 0.75)))


def mean_of_pairs(differences: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Return the mean of at least two differences, and its 95 % confidence interval by Student's t."""
    mean = statistics.fmean(differences)
    half = _t(len(differences) - 1) * statistics.stdev(differences) / math.sqrt(len(differences))
    return mean, (mean - half, mean + half)


def mean_of_two(first: Sequence[float], second: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    """Return the difference of two means, and its 95 % confidence interval by Welch's t.

    There is no interval if either sample is a single number.
    """
    mean = statistics.fmean(first) - statistics.fmean(second)
    if len(first) < 2 or len(second) < 2:
        return mean, None
    errors = [statistics.stdev(values) / math.sqrt(len(values)) for values in (first, second)]
    error = math.hypot(*errors)
    if not error:
        return mean, (mean, mean)
    # Divided by the whole, as the fourth powers of small errors would underflow to 0.
    shares = [
        (error_of_mean / error) ** 4 / (len(values) - 1)
        for error_of_mean, values in zip(errors, (first, second), strict=True)
    ]
    half = _t(1 / sum(shares)) * error
    return mean, (mean - half, mean + half)


def signed_rank(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the exact two-sided p-value of Wilcoxon's signed-rank test, also with ties. Equal pairs are left out.

    Wilcoxon, "Individual Comparisons by Ranking Methods", Biometrics Bulletin 1(6), 1945. Under the null hypothesis all
    combinations of signs are equally likely. The p-value is the fraction of them with a rank sum at least as extreme.
    """
    differences = [first - second for first, second in pairs]
    ranks = _doubled_ranks([abs(difference) for difference in differences], _errors(pairs))
    above = sum(rank for rank, difference in zip(ranks, differences, strict=True) if difference > 0)
    ways = Counter({0: 1})  # number of sign combinations by rank sum
    for rank in filter(None, ranks):
        ways.update({total + rank: count for total, count in ways.items()})
    extreme = min(above, sum(ranks) - above)  # the distribution of sums is symmetric
    few = sum(count for total, count in ways.items() if total <= extreme)
    return min(1.0, few / sum(ways.values()) * 2)


def _errors(pairs: Sequence[tuple[float, float]]) -> list[float]:
    """Return the largest rounding error of each pair's difference.

    For example, 0.97 - 0.96 and 0.96 - 0.95 differ in their last bits. Metrics are often 32-bit floats. All values are
    treated as 32-bit floats if 32 bits represent them exactly, and not all are whole numbers.
    """
    values = [value for pair in pairs for value in pair]
    are_single = all(c_float(value).value == value for value in values) and any(value % 1 for value in values)
    epsilon = 2.0**-23 if are_single else 2.0**-52
    return [2 * epsilon * max(map(abs, pair)) for pair in pairs]


def _quantile(ordered: Sequence[float | None], quantile: float) -> float | None:
    """Return a quantile, by linear interpolation between neighbours."""
    position = quantile * (len(ordered) - 1)
    at, fraction = int(position), position - int(position)
    below, above = ordered[at], ordered[at + 1] if fraction else ordered[at]
    if below == above:
        return below
    if below is None or above is None:
        return None
    apart = above - below
    interpolated = below + fraction * apart if math.isfinite(apart) else (1 - fraction) * below + fraction * above
    return None if math.isnan(interpolated) else interpolated


def _doubled_ranks(values: Sequence[float], errors: Sequence[float]) -> list[int]:
    """Return twice the rank of each value: 0 for possible zeros, the mean rank for possibly equal values."""
    ranks = [0] * len(values)
    order = [index for index in sorted(range(len(values)), key=values.__getitem__) if values[index] > errors[index]]
    first = 0
    for last, index in enumerate(order):
        following = order[last + 1] if last + 1 < len(order) else None
        if following is None or values[following] - values[index] > errors[following] + errors[index]:
            for tied in order[first : last + 1]:
                ranks[tied] = first + last + 2
            first = last + 1
    return ranks


def _t(freedom: float) -> float:
    from scipy.stats import t  # takes a second to import

    return float(t.ppf(0.975, freedom))
