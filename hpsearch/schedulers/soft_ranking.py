"""Whether two rankings of the same trials are the same, but for what is noise.

Bohdal et al., "PASHA: Efficient HPO and NAS with Progressive Resource Allocation", ICLR 2023, sections 4.2 and 4.3.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from itertools import groupby
from math import isfinite

from hpsearch.objective import Place

__all__ = ["SoftRanking"]

_PERCENTILE = 0.9
"""The share of the distances between swapping trials that are no more than epsilon: the paper's N = 90."""


class SoftRanking:
    """The trials of one rung, as they rank there and as they ranked in the rung before.

    Two trials whose curves crossed and crossed back are as good as each other: what lies between them is noise. Epsilon
    is the 90th percentile of the distances between such pairs, at the last iteration that both have reported.

    To add a trial costs O(n R) for the n that are there, which have run R iterations; to ask O(n log n).

    Args:
        epsilon: Up to which distance values count as equal as long as no pair here has crossed and crossed back.
    """

    def __init__(self, epsilon: float = 0.0) -> None:
        self.epsilon = epsilon
        self._places: list[tuple[Place, Place]] = []
        """Of each trial (that in this rung, that in the one before)."""
        self._curves: list[Mapping[int, float]] = []
        self._distances: list[float] = []
        """Between the pairs that crossed and crossed back, sorted."""

    def add(self, before: Place, here: Place, curve: Mapping[int, float]) -> None:
        """Take a trial that has ended here.

        Args:
            before: `Objective.place` of its value in the rung before, which isn't NaN.
            here: `Objective.place` of its value in this one.
            curve: Its reports by iteration, without NaN.
        """
        self._places.append((here, before))
        for other in self._curves:
            distance = _crossed_back(curve, other)
            if distance is not None:
                insort(self._distances, distance)
        self._curves.append(curve)
        if self._distances:
            self.epsilon = _percentile(self._distances)

    def agrees(self) -> bool:
        """Say whether at each place stands a trial that was as good in the rung before as the one that stood there.

        Trials that are equal here keep the order that they had.
        """
        stood = sorted(before for _, before in self._places)
        stands = sorted(self._places)
        return all(self._equal(before, other) for (_, before), other in zip(stands, stood, strict=True))

    def _equal(self, one: Place, other: Place) -> bool:
        return one == other or abs(one[1] - other[1]) <= self.epsilon


def _crossed_back(one: Mapping[int, float], other: Mapping[int, float]) -> float | None:
    """Give how far apart two curves end that crossed and crossed back; None where they didn't, or end as one."""
    gaps = [one[at] - other[at] for at in sorted(one.keys() & other.keys())]
    if not gaps or gaps[-1] == 0 or not isfinite(gaps[-1]):
        return None
    orders = (gap > 0 for gap in gaps if gap < 0 or gap > 0)  # the gap of like infinities is NaN
    return abs(gaps[-1]) if sum(1 for _ in groupby(orders)) > 2 else None


def _percentile(ordered: Sequence[float]) -> float:
    """Give the value below which that share of sorted numbers lies, between two of them by its part of the way."""
    whole, part = divmod(_PERCENTILE * (len(ordered) - 1), 1)
    low, high = ordered[int(whole)], ordered[min(int(whole) + 1, len(ordered) - 1)]
    return low + part * (high - low)
