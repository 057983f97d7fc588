"""What a few numbers say: their quartiles, the interval of a mean, and how likely a difference is by chance."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Spread", "mean_of_pairs", "mean_of_two", "signed_rank", "spread"]


@dataclass(frozen=True, slots=True)
class Spread:
    """How values spread over the runs of a side; None where a run without any decides, or two opposite infinities."""

    median: float | None
    low: float | None
    """The lower quartile: the better one of what is minimized."""
    high: float | None
    """The upper one, never below `low`."""


def spread(values: Sequence[float | None], more_is_better: bool) -> Spread:
    """Give median and quartiles; None is worse than all numbers, infinite ones included.

    Args:
        values: One for each run; None where it has none, which is also what lies between a number and None.
        more_is_better: So that None stands below all numbers; else above them.
    """
    known = sorted(value for value in values if value is not None)
    absent = [None] * (len(values) - len(known))
    ordered = [*absent, *known] if more_is_better else [*known, *absent]
    return Spread(*(_quantile(ordered, share) for share in (0.5, 0.25, 0.75)))


def mean_of_pairs(differences: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Give the mean of two differences or more, and its interval of 95 % by Student's t."""
    mean = statistics.fmean(differences)
    half = _t(len(differences) - 1) * statistics.stdev(differences) / math.sqrt(len(differences))
    return mean, (mean - half, mean + half)


def mean_of_two(one: Sequence[float], other: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    """Give by how much the mean of one lies above that of the other, and its interval of 95 % by Welch's t.

    There is no interval where either is a single number.
    """
    mean = statistics.fmean(one) - statistics.fmean(other)
    if len(one) < 2 or len(other) < 2:
        return mean, None
    errors = [statistics.stdev(values) / math.sqrt(len(values)) for values in (one, other)]
    error = math.hypot(*errors)
    if not error:
        return mean, (mean, mean)
    # Shares of the whole, as the fourth powers of small errors are 0.
    shares = [(own / error) ** 4 / (len(values) - 1) for own, values in zip(errors, (one, other), strict=True)]
    half = _t(1 / sum(shares)) * error
    return mean, (mean - half, mean + half)


def signed_rank(differences: Sequence[float]) -> float:
    """Give the two-sided p-value of Wilcoxon's signed-rank test, exactly, also with ties; zeros are left out.

    Wilcoxon, "Individual Comparisons by Ranking Methods", Biometrics Bulletin 1(6), 1945. All signs are equally likely
    where nothing differs, so it counts in how many of them the ranks of one sign add up to as little, or as much.
    """
    known = [difference for difference in differences if difference]
    ranks = _doubled_ranks([abs(difference) for difference in known])
    above = sum(rank for rank, difference in zip(ranks, known, strict=True) if difference > 0)
    ways = Counter({0: 1})  # by the sum of ranks
    for rank in ranks:
        ways.update({total + rank: count for total, count in ways.items()})
    extreme = min(above, sum(ranks) - above)  # the sums lie symmetrically
    few = sum(count for total, count in ways.items() if total <= extreme)
    return min(1.0, few / (1 << len(ranks)) * 2)


def _quantile(ordered: Sequence[float | None], share: float) -> float | None:
    """Give a quantile between neighbours, linearly."""
    place = share * (len(ordered) - 1)
    at, rest = int(place), place - int(place)
    below, above = ordered[at], ordered[at + 1] if rest else ordered[at]
    if below == above:
        return below
    if below is None or above is None:
        return None
    apart = above - below
    found = below + rest * apart if math.isfinite(apart) else (1 - rest) * below + rest * above
    return None if math.isnan(found) else found


def _doubled_ranks(values: Sequence[float]) -> list[int]:
    """Give twice the rank of each value; equal ones have the mean of theirs."""
    counts, before = Counter(values), 0
    ranks = {}
    for value in sorted(counts):
        ranks[value] = 2 * before + counts[value] + 1
        before += counts[value]
    return [ranks[value] for value in values]


def _t(freedom: float) -> float:
    from scipy.stats import t  # takes a second to import

    return float(t.ppf(0.975, freedom))
