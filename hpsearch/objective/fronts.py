"""Points of several goals in the order of NSGA-II: by fronts, and within a front by how far apart they are.

Deb et al., "A Fast and Elitist Multiobjective Genetic Algorithm: NSGA-II", IEEE Transactions on Evolutionary
Computation 6(2), 2002, sections III.A and III.B.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter, le

__all__ = ["Fronts", "Point", "dominates", "undominated"]

Point = tuple[float, ...]
"""One number for each goal, none NaN: the less, the better."""


def dominates(one: Point, other: Point) -> bool:
    """Say whether a point is nowhere worse than another, and somewhere better."""
    return one != other and all(map(le, one, other))


def undominated(points: Mapping[int, Point]) -> list[int]:
    """Give the keys of the points that nothing dominates, in order; of two goals in O(n log n) comparisons.

    Kung et al., "On Finding the Maxima of a Set of Vectors", Journal of the ACM 22(4), 1975.
    """
    found: list[Point] = []
    for point in sorted(set(points.values())):
        # What dominates a point comes before it; of two goals the one that was found last is the best in the second.
        before = found[-1:] if len(point) == 2 else found
        if not any(dominates(other, point) for other in before):
            found.append(point)
    front = set(found)
    return sorted(key for key, point in points.items() if point in front)


class Fronts:
    """Points that are sorted into fronts as they come: nothing in a front dominates another of it.

    The first front holds what nothing dominates, each further one what only those before it do. A new point is put
    into its front, and moves what it dominates one front on, which may do the same there: Li et al., "Efficient
    Nondomination Level Update Method for Steady-State Evolutionary Multiobjective Optimization", IEEE Transactions on
    Cybernetics 47(9), 2017. So a point costs as many comparisons as the fronts that it touches have points. In which
    order points come changes nothing.
    """

    def __init__(self) -> None:
        self._fronts: list[dict[int, Point]] = []
        self._ranked: list[dict[int, float] | None] = []
        """Crowding distances in each front, the largest first; None where they aren't known."""

    @classmethod
    def of(cls, points: Mapping[int, Point]) -> Fronts:
        """Sort many points at once: in their order none moves another one on."""
        fronts = cls()
        keys = sorted(points, key=points.__getitem__)
        for key, level in zip(keys, _levels([points[key] for key in keys]), strict=True):
            if level == len(fronts._fronts):
                fronts._fronts.append({})
                fronts._ranked.append(None)
            fronts._fronts[level][key] = points[key]
        return fronts

    def __len__(self) -> int:
        return sum(map(len, self._fronts))

    @property
    def first(self) -> list[int]:
        """The keys of the points that nothing dominates, in order."""
        return sorted(self._fronts[0]) if self._fronts else []

    def add(self, key: int, point: Point) -> None:
        """Take a point, under a key of its own."""
        moved, level = {key: point}, self._level_of(point)
        while moved:
            if level == len(self._fronts):
                self._fronts.append({})
                self._ranked.append(None)
            front = self._fronts[level]
            beaten = {k: p for k, p in front.items() if any(dominates(better, p) for better in moved.values())}
            self._fronts[level] = {k: p for k, p in front.items() if k not in beaten} | moved
            self._ranked[level] = None
            moved, level = beaten, level + 1

    def places(self) -> dict[int, tuple[int, float]]:
        """Give what orders the points, the less the better: (front, from 0; crowding distance, negative)."""
        return {
            key: (level, -distance)
            for level in range(len(self._fronts))
            for key, distance in self._crowding(level).items()
        }

    def ranked(self) -> Iterator[int]:
        """Give the keys, best first: front by front, in each the least crowded first, of equals the lower key."""
        for level in range(len(self._fronts)):
            yield from self._crowding(level)

    def _level_of(self, point: Point) -> int:
        """Return the first front that holds nothing which dominates a point: where one does, so does each before it."""
        return bisect_left(
            self._fronts, True, key=lambda front: not any(dominates(other, point) for other in front.values())
        )

    def _crowding(self, level: int) -> dict[int, float]:
        known = self._ranked[level]
        if known is None:
            distances = _crowding_distances(self._fronts[level])
            order = sorted(sorted(distances), key=distances.__getitem__, reverse=True)  # of equals the lower key
            known = self._ranked[level] = {key: distances[key] for key in order}
        return known


def _levels(points: Sequence[Point]) -> Iterator[int]:
    """Yield the front of each point, from 0, by binary search among the fronts of those before it.

    Zhang et al., "An Efficient Approach to Nondominated Sorting for Evolutionary Multiobjective Optimization", IEEE
    TEC 19(2), 2015. With two goals a front's last point dominates a new one if any does.

    Args:
        points: Sorted, so that what dominates a point comes before it.
    """
    import numpy as np  # here, as most commands need none of it

    fronts: list[np.ndarray] = []
    """The points of each in its first rows; it is made twice as long when it is full."""
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
    """Give by how much each point of a front stands apart: Deb et al., section III.B.1.

    Of equal points the one with the lowest key stands for all, and the others have 0. Infinities count as the worst or
    the best of the finite numbers.
    """
    distinct: dict[Point, int] = {}
    for key in sorted(front):
        distinct.setdefault(front[key], key)
    apart = dict.fromkeys(front, 0.0)
    points = sorted(distinct)
    for goal in range(len(points[0])):
        ordered = sorted(points, key=itemgetter(goal))
        keys = [distinct[point] for point in ordered]
        apart[keys[0]] = apart[keys[-1]] = math.inf
        shares = _shares([point[goal] for point in ordered])
        for key, before, behind in zip(keys[1:-1], shares, shares[2:], strict=False):
            apart[key] += behind - before
    return apart


def _shares(values: list[float]) -> list[float]:
    """Give where rising numbers stand between the first and the last finite one, from 0 to 1; 0 where these are equal.

    Where their difference is no float, that of their halves is taken; those of the least floats would be 0.
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
