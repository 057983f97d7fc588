"""Normal and log-normal distributions. A `step` rounds to its multiples, like W&B's `q`.

`points` spaces a grid by quantiles: grid value i is the quantile of (i + 0.5) / points.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import ClassVar

from hpsearch.config.checks import InvalidKey, number
from hpsearch.seeds import DRAW_BITS
from hpsearch.space._decimals import MOST_STEPS, Multiples
from hpsearch.space.distribution import GRID_LIMIT, Numeric, share_of

__all__ = ["LogNormal", "Normal"]

_LARGEST = sys.float_info.max
_SMALLEST = sys.float_info.min


@dataclass(frozen=True)
class _Normal(Numeric):
    fewest_points: ClassVar[int] = 1

    mu: float = 0.0
    sigma: float = 1.0
    step: float | None = None
    points: int | None = None

    def _check(self) -> None:
        for name in ("mu", "sigma"):
            self._set(name, number)
        if self.sigma <= 0:
            raise InvalidKey(("sigma",), f"must be greater than 0, got {self.sigma}", "a single value is a constant")
        super()._check()
        if self.step is not None and abs(self._from_scale(self.mu)) > MOST_STEPS * self.step:
            raise InvalidKey(("step",), f"must not be so small against mu ({self.mu}), got {self.step}")

    @cached_property
    def steps(self) -> Multiples | None:
        if self.step is None:
            return None
        largest = 2**63 - 1 if isinstance(self.step, int) else _LARGEST
        most = int(min(MOST_STEPS, largest // self.step))
        return Multiples(self.step, -most, most)

    @cached_property
    def ends(self) -> tuple[int | float, int | float]:
        return self.draw(0), self.draw(2**DRAW_BITS - 1)

    def at_deviations(self, deviations: float) -> int | float:
        """Return the value that is `deviations` times sigma above mu, on the distribution's scale."""
        return self.snap(self._from_scale(min(max(self.mu + self.sigma * deviations, -_LARGEST), _LARGEST)))

    @staticmethod
    def _from_scale(position: float) -> float:
        return position

    def position(self, value: float) -> float:
        return NormalDist().cdf((self._to_scale(value) - self.mu) / self.sigma)

    @staticmethod
    def _to_scale(value: float) -> float:
        return value

    def draw(self, bits: int) -> int | float:
        # The middles of 2**52 equal parts: with one more bit the last would round to 1, whose quantile is infinite.
        share = share_of(bits, 52) + 2.0**-53
        return self.at_deviations(NormalDist().inv_cdf(share))

    def grid(self) -> list[int | float]:
        if self.points is None:
            raise InvalidKey(("points",), "is required for a grid over an unbounded parameter", add=((), "points: 5"))
        quantile = NormalDist().inv_cdf
        shares = [(index + 0.5) / self.points for index in range(self.points)]
        return list(dict.fromkeys(self.at_deviations(quantile(share)) for share in shares))

    def every_value(self) -> list[int | float] | None:
        """Return the multiples from the smallest to the largest that can be sampled."""
        steps = self.steps
        if steps is None:
            return None
        least, greatest = map(steps.multiple, self.ends)
        if greatest - least >= GRID_LIMIT:
            return None
        return [steps.value(multiple) for multiple in range(least, greatest + 1)]

    def accept(self, value: object) -> int | float:
        return self._accept_multiple(number(value, ()))


@dataclass(frozen=True)
class Normal(_Normal):
    """A normally distributed float."""

    kind: ClassVar[str] = "normal"


@dataclass(frozen=True)
class LogNormal(_Normal):
    """A positive float whose natural logarithm is normal with `mu` and `sigma`. A step may round it to 0."""

    kind: ClassVar[str] = "log_normal"

    @staticmethod
    def _from_scale(position: float) -> float:
        # Far tails would overflow to infinity or underflow to 0, which has no logarithm.
        return _LARGEST if position > math.log(_LARGEST) else max(math.exp(position), _SMALLEST)

    @staticmethod
    def _to_scale(value: float) -> float:
        # A step may round to 0, which has no logarithm.
        return -_LARGEST if value == 0 else math.log(value)

    def accept(self, value: object) -> int | float:
        """Return a positive number, or 0 if there is a step."""
        accepted = super().accept(value)
        if accepted < 0 or (accepted == 0 and self.step is None):
            raise InvalidKey((), f"must be greater than 0, got {accepted}")
        return accepted
