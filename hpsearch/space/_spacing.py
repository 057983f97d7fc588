"""The points of a grid as decimals, rounded once: when they become floats or integers.

A float has 17 digits. These have 60, so that neither the sums of two numbers of like size nor a million
multiplications leave an error that a float could show.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import ROUND_05UP, Context, Decimal

__all__ = ["linear", "logarithmic"]

# What was cut off stays seen in the last digit, so that rounding a second time, to a float, goes the right way.
_PRECISE = Context(prec=60, rounding=ROUND_05UP)


def linear(low: float, high: float, points: int) -> Iterator[Decimal]:
    """Give points at equal distances, both ends included.

    The ends are the decimals that people wrote: from 0.1 to 0.3 the middle is 0.2, and no binary number beside it.
    """
    first, last, gaps = Decimal(repr(low)), Decimal(repr(high)), Decimal(points - 1)
    for place in range(points):
        # Not first + place * (last - first) / gaps: a third, rounded, would keep the last point off its place.
        whole = _PRECISE.fma(last, Decimal(place), _PRECISE.multiply(first, Decimal(points - 1 - place)))
        yield _PRECISE.divide(whole, gaps)


def logarithmic(low: float, high: float, points: int) -> Iterator[Decimal]:
    """Give points at equal ratios, both ends included; `low` is above 0."""
    point, last = Decimal(repr(low)), Decimal(repr(high))
    ratio = _PRECISE.power(_PRECISE.divide(last, point), _PRECISE.divide(Decimal(1), Decimal(points - 1)))
    for _ in range(points - 1):
        yield point
        point = _PRECISE.multiply(point, ratio)
    yield last
