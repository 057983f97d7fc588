"""Problems of several goals, with the hypervolume of the best that there is: all goals are minimized."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from hpsearch.objective import hypervolume

Point = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a point of the space is worth."""

    values: Point
    excesses: Point = ()
    """By how much each constraint is broken; 0 or less where it is kept."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A function to minimize in each of its goals."""

    name: str
    ranges: tuple[tuple[float, float], ...]
    """Of each parameter, from and to."""
    outcome: Callable[[Sequence[float]], Outcome]
    reference: Point
    """From here hypervolumes are measured; random points are mostly better."""
    front: Callable[[], Sequence[Point]]
    """Points of the best front, densely."""
    constraints: int = 0
    """How many there are."""

    @property
    def goals(self) -> int:
        """How many there are."""
        return len(self.reference)

    def share(self, points: Sequence[Point]) -> float:
        """Return the hypervolume of points as a share of that of the best front."""
        return hypervolume(points, self.reference) / _best(self)


@cache
def _best(problem: Problem) -> float:
    return hypervolume(problem.front(), problem.reference)


_UNIT = ((0.0, 1.0),) * 6


def _zdt(shape: Callable[[float, float], float]) -> Callable[[Sequence[float]], Outcome]:
    """Zitzler, Deb and Thiele, "Comparison of Multiobjective Evolutionary Algorithms: Empirical Results", 2000.

    With six parameters in place of thirty, as there are so few trials.
    """

    def outcome(x: Sequence[float]) -> Outcome:
        g = 1 + 9 * sum(x[1:]) / (len(x) - 1)
        return Outcome((x[0], g * shape(x[0], g)))

    return outcome


def _zdt1(f: float, g: float) -> float:
    return 1 - math.sqrt(f / g)


def _zdt2(f: float, g: float) -> float:
    return 1 - (f / g) ** 2


def _zdt3(f: float, g: float) -> float:
    return 1 - math.sqrt(f / g) - f / g * math.sin(10 * math.pi * f)


def _steps(count: int) -> list[float]:
    return [place / count for place in range(count + 1)]


def _zdt_problem(name: str, shape: Callable[[float, float], float]) -> Problem:
    return Problem(name, _UNIT, _zdt(shape), (1.1, 7.0), lambda: [(f, shape(f, 1.0)) for f in _steps(5000)])


def _dtlz2(x: Sequence[float]) -> Outcome:
    """Deb et al., "Scalable Multi-Objective Optimization Test Problems", CEC 2002: three goals, six parameters."""
    g = sum((each - 0.5) ** 2 for each in x[2:])
    return Outcome(tuple((1 + g) * each for each in _on_sphere(x[0], x[1])))


def _on_sphere(a: float, b: float) -> Point:
    a, b = a * math.pi / 2, b * math.pi / 2
    return math.cos(a) * math.cos(b), math.cos(a) * math.sin(b), math.sin(a)


def _sphere() -> list[Point]:
    return [_on_sphere(a, b) for a in _steps(50) for b in _steps(50)]


def _c2_dtlz2(x: Sequence[float]) -> Outcome:
    """Jain and Deb, "An Evolutionary Many-Objective Optimization Algorithm [...] Part II", IEEE TEC 2014: C2-DTLZ2."""
    values = _dtlz2(x).values
    return Outcome(values, (_c2(values),))


def _c2(values: Point, radius: float = 0.4) -> float:
    """Goals must be near an axis or the diagonal."""
    squares = sum(each**2 for each in values)
    near_axis = min((each - 1) ** 2 + squares - each**2 - radius**2 for each in values)
    near_diagonal = sum((each - 1 / math.sqrt(len(values))) ** 2 for each in values) - radius**2
    return min(near_axis, near_diagonal)


def _bnh(x: Sequence[float]) -> Outcome:
    """Binh and Korn, "MOBES: A Multiobjective Evolution Strategy for Constrained Optimization Problems", 1997."""
    a, b = x
    values = (4 * a**2 + 4 * b**2, (a - 5) ** 2 + (b - 5) ** 2)
    return Outcome(values, ((a - 5) ** 2 + b**2 - 25, 7.7 - (a - 8) ** 2 - (b + 3) ** 2))


def _bnh_front() -> list[Point]:
    both = [_bnh((3 * share, 3 * share)).values for share in _steps(2000)]
    return both + [_bnh((3 + 2 * share, 3.0)).values for share in _steps(2000)]


def _osy(x: Sequence[float]) -> Outcome:
    """Osyczka and Kundu, "A New Method to Solve Generalized Multicriteria Optimization Problems [...]", 1995."""
    a, b, c, d, e, f = x
    first = 25 * (a - 2) ** 2 + (b - 2) ** 2 + (c - 1) ** 2 + (d - 4) ** 2 + (e - 1) ** 2
    broken = (2 - a - b, a + b - 6, b - a - 2, a - 3 * b - 2, (c - 3) ** 2 + d - 4, 4 - (e - 3) ** 2 - f)
    return Outcome((-first, sum(each**2 for each in x)), broken)


def _osy_front() -> list[Point]:
    """The five regions of Deb, "Multi-Objective Optimization Using Evolutionary Algorithms", 2001, table 8.1."""
    points = []
    for s in _steps(2000):
        points += [(5.0, 1.0, 1 + 4 * s, 0.0, 5.0, 0.0), (5.0, 1.0, 1 + 4 * s, 0.0, 1.0, 0.0)]
        points.append((4.056 + 0.944 * s, (2.056 + 0.944 * s) / 3, 1.0, 0.0, 1.0, 0.0))
        points.append((0.0, 2.0, 1 + 2.732 * s, 0.0, 1.0, 0.0))
        points.append((s, 2 - s, 1.0, 0.0, 1.0, 0.0))
    found = [_osy(point) for point in points]
    return [one.values for one in found if all(excess <= 1e-9 for excess in one.excesses)]


PROBLEMS = (
    _zdt_problem("ZDT1", _zdt1),
    _zdt_problem("ZDT2", _zdt2),
    _zdt_problem("ZDT3", _zdt3),
    Problem("DTLZ2", _UNIT, _dtlz2, (1.1,) * 3, _sphere),
    Problem("BNH", ((0.0, 5.0), (0.0, 3.0)), _bnh, (140.0, 50.0), _bnh_front, 2),
    Problem(
        "OSY",
        ((0.0, 10.0), (0.0, 10.0), (1.0, 5.0), (0.0, 6.0), (1.0, 5.0), (0.0, 10.0)),
        _osy,
        (0.0, 150.0),
        _osy_front,
        6,
    ),
    Problem("C2-DTLZ2", _UNIT, _c2_dtlz2, (1.1,) * 3, lambda: [p for p in _sphere() if _c2(p) <= 0], 1),
)
