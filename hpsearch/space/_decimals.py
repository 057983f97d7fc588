"""Numbers as the decimals that people write, free of float dust: 3 x 0.1 is 0.3.

They are rounded once: when they become floats or integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_05UP, ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from functools import cached_property

__all__ = ["MOST_STEPS", "Steps", "linear", "logarithmic"]

MOST_STEPS = 2**40
"""Most steps from zero: well below the 2**53 from which on a float can't tell neighbouring multiples apart."""

# A float has 17 digits. These have 60, so that a product of two decimals is exact, and neither the sums of two numbers
# of like size nor a million multiplications leave an error that a float could show. What was cut off stays seen in the
# last digit, so that rounding a second time, to a float or an integer, goes the right way.
_PRECISE = Context(prec=60, rounding=ROUND_05UP)


@dataclass(frozen=True)
class Steps:
    """The multiples `first * size` to `last * size`. An integer `size` gives integers, as W&B's `q` does."""

    size: int | float
    first: int = -MOST_STEPS
    last: int = MOST_STEPS

    @classmethod
    def between(cls, size: int | float, low: float, high: float) -> Steps | None:
        """Give the multiples in [low, high], or None when some lie too many steps from zero."""
        exact = Decimal(repr(size))
        with_sign = (Decimal(repr(low)), Decimal(repr(high)))
        if max(abs(bound) for bound in with_sign) > exact * MOST_STEPS:
            return None
        # Decimal(repr(x)) is the number that people wrote: 0.3 / 0.1 is 3 here, and 2.99.. in binary.
        first, last = (_PRECISE.divide(bound, exact) for bound in with_sign)
        return cls(
            size,
            int(first.to_integral_value(ROUND_CEILING)),
            int(last.to_integral_value(ROUND_FLOOR)),
        )

    @property
    def count(self) -> int:
        """How many multiples there are; 0 or less when none lies in the range."""
        return self.last - self.first + 1

    def value(self, multiple: int) -> int | float:
        """Give `multiple * size`."""
        if isinstance(self.size, int):
            return multiple * self.size
        return float(_PRECISE.multiply(self._exact_size, Decimal(multiple)))

    def multiple(self, value: float) -> int:
        """Give which multiple a value is, or the one nearest to it."""
        if isinstance(value, int) and isinstance(self.size, int):
            return (2 * value + self.size) // (2 * self.size)  # exact beyond 2**53
        return round(value / self.size)

    def snap(self, value: float) -> int | float:
        """Give the multiple nearest to a value, among those in the range."""
        if isinstance(value, int) and isinstance(self.size, int):
            steps: float = (2 * value + self.size) // (2 * self.size)  # exact beyond 2**53
        else:
            steps = value / self.size
        return self.value(round(min(max(steps, self.first), self.last)))

    def nearest(self, exact: Decimal) -> int | float:
        """Give the multiple nearest to an exact number, among those in the range; of two the even one."""
        steps = _PRECISE.divide(exact, self._exact_size).to_integral_value(ROUND_HALF_EVEN)
        return self.value(min(max(int(steps), self.first), self.last))

    @cached_property
    def _exact_size(self) -> Decimal:
        return Decimal(repr(self.size))


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
