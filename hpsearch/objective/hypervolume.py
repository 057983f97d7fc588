"""The hypervolume indicator."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hpsearch.objective.fronts import Point

__all__ = ["hypervolume"]


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
