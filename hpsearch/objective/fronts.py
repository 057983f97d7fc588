"""Pareto fronts: non-dominated sorting with crowding distances, as in NSGA-II, and the hypervolume indicator.

Deb et al., "A Fast and Elitist Multiobjective Genetic Algorithm: NSGA-II", IEEE Transactions on Evolutionary
Computation 6(2), 2002, sections III.A and III.B.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter, le

Point = tuple[float, ...]
"""One number for each goal, to be minimized. NaN is not allowed."""


def dominates(point: Point, other: Point) -> bool:
    """Return whether a point Pareto-dominates another: nowhere worse, and better somewhere."""
    return point != other and all(map(le, point, other))


def non_dominated(points: Mapping[int, Point]) -> list[int]:
    """Return the sorted keys of the non-dominated points, with O(n log n) comparisons for two goals.

    Kung et al., "On Finding the Maxima of a Set of Vectors", Journal of the ACM 22(4), 1975.
    """
    front: list[Point] = []
    for point in sorted(set(points.values())):
        # Dominating points sort first. With two goals, the last point of the front is the best in the second goal.
        rivals = front[-1:] if len(point) == 2 else front
        if not any(dominates(other, point) for other in rivals):
            front.append(point)
    members = set(front)
    return sorted(key for key, point in points.items() if point in members)


class Fronts:
    """Incremental non-dominated sorting.

    The first front holds the non-dominated points. Each further front holds the points that only earlier fronts
    dominate. A new point moves the points of its front that it dominates to the next front, and so on: Li et al.,
    "Efficient Nondomination Level Update Method for Steady-State Evolutionary Multiobjective Optimization", IEEE
    Transactions on Cybernetics 47(9), 2017. A point is only compared with the points of the fronts that it changes. The
    result does not depend on the order of the points.
    """

    def __init__(self) -> None:
        self._fronts: list[dict[int, Point]] = []
        self._ranked: dict[int, dict[int, float]] = {}
        """Front to its crowding distances by key, the largest first; only the fronts that haven't changed since."""

    @classmethod
    def of(cls, points: Mapping[int, Point]) -> Fronts:
        """Return the fronts of many points. In lexicographic order, no point moves another."""
        fronts = cls()
        keys = sorted(points, key=points.__getitem__)
        for key, level in zip(keys, _levels([points[key] for key in keys]), strict=True):
            if level == len(fronts._fronts):
                fronts._fronts.append({})
            fronts._fronts[level][key] = points[key]
        return fronts

    def __len__(self) -> int:
        return sum(map(len, self._fronts))

    def add(self, key: int, point: Point) -> None:
        """Add a point under a new key."""
        moved, level = {key: point}, self._level_of(point)
        while moved:
            if level == len(self._fronts):
                self._fronts.append({})
            front = self._fronts[level]
            beaten = {k: p for k, p in front.items() if any(dominates(better, p) for better in moved.values())}
            self._fronts[level] = {k: p for k, p in front.items() if k not in beaten} | moved
            self._ranked.pop(level, None)
            moved, level = beaten, level + 1

    def sort_keys(self) -> dict[int, tuple[int, float]]:
        """Return the sort key of each point, best first: index of its front, and negative crowding distance."""
        return {
            key: (level, -distance)
            for level in range(len(self._fronts))
            for key, distance in self._crowding(level).items()
        }

    def ranked(self) -> Iterator[int]:
        """Yield the keys, best first: by front, then least crowded first, then lower key first."""
        for level in range(len(self._fronts)):
            yield from self._crowding(level)

    def _level_of(self, point: Point) -> int:
        """Return the first front without a point that dominates this one. Every earlier front has such a point."""
        return bisect_left(
            self._fronts, True, key=lambda front: not any(dominates(other, point) for other in front.values())
        )

    def _crowding(self, level: int) -> dict[int, float]:
        if level not in self._ranked:
            distances = _crowding_distances(self._fronts[level])
            order = sorted(sorted(distances), key=distances.__getitem__, reverse=True)  # ties: the lower key first
            self._ranked[level] = {key: distances[key] for key in order}
        return self._ranked[level]


def _levels(points: Sequence[Point]) -> Iterator[int]:
    """Yield the index of the front of each point, by binary search among the fronts of earlier points.

    Zhang et al., "An Efficient Approach to Nondominated Sorting for Evolutionary Multiobjective Optimization", IEEE
    TEC 19(2), 2015. With two goals, if any point of a front dominates a new one, the last one does.

    Args:
        points: Sorted, so that dominating points come first.
    """
    import numpy as np  # imported here, as most commands do not need it

    fronts: list[np.ndarray] = []
    """The points of each front in its first rows. A full array is doubled."""
    counts: list[int] = []
    level = 0
    for index, point in enumerate(points):
        if index == 0 or point != points[index - 1]:
            row, first = np.array(point), -1 if len(point) == 2 else 0

            def is_open(front: int, row: np.ndarray = row, first: int = first) -> bool:
                rivals = fronts[front][: counts[front]][first:]
                return not (rivals <= row).all(axis=1).any()

            level = bisect_left(range(len(fronts)), True, key=is_open)
            if level == len(fronts):
                fronts.append(np.empty((4, len(point))))
                counts.append(0)
            if counts[level] == len(fronts[level]):
                fronts[level] = np.concatenate([fronts[level], np.empty_like(fronts[level])])
            fronts[level][counts[level]] = row
            counts[level] += 1
        yield level


def _crowding_distances(front: Mapping[int, Point]) -> dict[int, float]:
    """Return the crowding distance of each point of a front: Deb et al., section III.B.1.

    If points are equal, the point with the lowest key gets the distance, and the others get 0. Infinities count as the
    worst or the best of the finite numbers.
    """
    distinct: dict[Point, int] = {}
    for key in sorted(front):
        distinct.setdefault(front[key], key)
    distances = dict.fromkeys(front, 0.0)
    points = sorted(distinct)
    for goal in range(len(points[0])):
        ordered = sorted(points, key=itemgetter(goal))
        keys = [distinct[point] for point in ordered]
        distances[keys[0]] = distances[keys[-1]] = math.inf
        shares = _shares([point[goal] for point in ordered])
        for key, before, after in zip(keys[1:-1], shares, shares[2:], strict=False):
            distances[key] += after - before
    return distances


def _shares(values: list[float]) -> list[float]:
    """Return sorted numbers, scaled so that the finite ones range from 0 to 1; zeros if all are equal.

    Numbers are only halved if the range would overflow, since half of the smallest float is 0.
    """
    finite = [value for value in values if math.isfinite(value)]
    low, high = (finite[0], finite[-1]) if finite else (0.0, 0.0)
    if low == high:
        return [0.0] * len(values)
    if len(finite) < len(values):
        values = [min(max(value, low), high) for value in values]
    if math.isinf(high - low):
        low, high, values = low / 2, high / 2, [value / 2 for value in values]
    span = high - low
    return [(value - low) / span for value in values]


def hypervolume(points: Sequence[Point], reference: Point) -> float:
    """Return the volume that the points dominate, up to the reference point.

    Zitzler and Thiele, "Multiobjective Optimization Using Evolutionary Algorithms", PPSN 1998. Computed by slices along
    the last goal (While et al., "A Faster Algorithm for Calculating Hypervolume", IEEE TEC 10(1), 2006, section III).

    Args:
        points: To be minimized. Dominated points, and points that are not better than the reference, add nothing.
        reference: A finite number for each goal.
    """
    inside = [point for point in points if all(a < b for a, b in zip(point, reference, strict=True))]
    return _volume(inside, reference)


def _volume(points: Sequence[Point], reference: Point) -> float:
    if not points:
        return 0.0
    if len(reference) == 1:
        return reference[0] - min(point[0] for point in points)
    if len(reference) == 2:
        return _area(points, reference)
    depths = sorted({point[-1] for point in points})
    volume = 0.0
    for near, far in pairwise([*depths, reference[-1]]):
        slab = [point[:-1] for point in points if point[-1] <= near]
        volume += _volume(slab, reference[:-1]) * (far - near)
    return volume


def _area(points: Sequence[Point], reference: Point) -> float:
    area, top = 0.0, reference[1]
    for x, y in sorted((point[0], point[1]) for point in points):
        if y < top:
            area += (reference[0] - x) * (top - y)
            top = y
    return area
