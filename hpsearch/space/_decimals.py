"""Exact decimal arithmetic for grids and steps: 3 x 0.1 is 0.3.

Results are rounded once, when they become floats or integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_05UP, ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from functools import cached_property

MOST_STEPS = 2**40
"""Largest distance from zero, in steps. From 2**53 on, a float cannot tell neighbouring multiples apart."""

# A float has 17 digits. With 60, a product of two decimals is exact, and even a million multiplications leave no error
# that is visible in a float. ROUND_05UP marks in the last digit that digits were cut off, so that a second rounding, to
# a float or an integer, is correct.
_PRECISE = Context(prec=60, rounding=ROUND_05UP)


@dataclass(frozen=True)
class Multiples:
    """The multiples `first * size` to `last * size`. They are integers if `size` is one, like W&B's `q`."""

    size: int | float
    first: int = -MOST_STEPS
    last: int = MOST_STEPS

    @classmethod
    def between(cls, size: int | float, low: float, high: float) -> Multiples | None:
        """Return the multiples in [low, high], or None if some are too many steps away from zero."""
        exact = Decimal(repr(size))
        with_sign = (Decimal(repr(low)), Decimal(repr(high)))
        if max(abs(bound) for bound in with_sign) > exact * MOST_STEPS:
            return None
        # Decimal(repr(x)) is the number as written: 0.3 / 0.1 is 3 here, and 2.99.. in binary.
        first, last = (_PRECISE.divide(bound, exact) for bound in with_sign)
        return cls(
            size,
            int(first.to_integral_value(ROUND_CEILING)),
            int(last.to_integral_value(ROUND_FLOOR)),
        )

    @property
    def count(self) -> int:
        """Number of multiples; 0 or less if none is in the range."""
        return self.last - self.first + 1

    def value(self, multiple: int) -> int | float:
        """Return `multiple * size`."""
        if isinstance(self.size, int):
            return multiple * self.size
        return float(_PRECISE.multiply(self._exact_size, Decimal(multiple)))

    def multiple(self, value: float) -> int:
        """Return the factor of the multiple nearest to a value."""
        if isinstance(value, int) and isinstance(self.size, int):
            return (2 * value + self.size) // (2 * self.size)  # exact beyond 2**53
        return round(value / self.size)

    def snap(self, value: float) -> int | float:
        """Return the multiple in the range that is nearest to a value."""
        if isinstance(value, int) and isinstance(self.size, int):
            steps: float = (2 * value + self.size) // (2 * self.size)  # exact beyond 2**53
        else:
            steps = value / self.size
        return self.value(round(min(max(steps, self.first), self.last)))

    def nearest(self, exact: Decimal) -> int | float:
        """Return the multiple in the range that is nearest to an exact number; ties go to the even factor."""
        steps = _PRECISE.divide(exact, self._exact_size).to_integral_value(ROUND_HALF_EVEN)
        return self.value(min(max(int(steps), self.first), self.last))

    @cached_property
    def _exact_size(self) -> Decimal:
        return Decimal(repr(self.size))


def linear(low: float, high: float, points: int) -> Iterator[Decimal]:
    """Yield evenly spaced points, both ends included.

    The ends are the decimals as written, so that the middle of 0.1 and 0.3 is exactly 0.2.
    """
    first, last, gaps = Decimal(repr(low)), Decimal(repr(high)), Decimal(points - 1)
    for index in range(points):
        # Not first + index * (last - first) / gaps: if that is rounded, such as a third, the last point is not `last`.
        weighted_sum = _PRECISE.fma(last, Decimal(index), _PRECISE.multiply(first, Decimal(points - 1 - index)))
        yield _PRECISE.divide(weighted_sum, gaps)


def logarithmic(low: float, high: float, points: int) -> Iterator[Decimal]:
    """Yield points at equal ratios, both ends included; `low` must be above 0."""
    point, last = Decimal(repr(low)), Decimal(repr(high))
    ratio = _PRECISE.power(_PRECISE.divide(last, point), _PRECISE.divide(Decimal(1), Decimal(points - 1)))
    for _ in range(points - 1):
        yield point
        point = _PRECISE.multiply(point, ratio)
    yield last
