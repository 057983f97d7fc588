"""Bounded ranges of numbers: uniform or log-uniform, of floats or of integers.

Of the multiples of a `step` a range has those inside [min, max]. `points` spaces a grid on the range's own scale, both
ends included, and exactly.

A `prior` is a value that is believed to be good. Near it lies a truncated normal on the unit scale of the draws: a
range of floats has the value's place there, and one of integers the middle of what the integer takes of it.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from hpsearch.config.checks import InvalidKey, integer, number
from hpsearch.seeds import DRAW_BITS
from hpsearch.space._decimals import Steps, linear, logarithmic
from hpsearch.space._near import bits_near
from hpsearch.space.distribution import GRID_LIMIT, Numeric, share_of

__all__ = ["IntUniform", "LogIntUniform", "LogUniform", "Uniform"]


@dataclass(frozen=True)
class _Range(Numeric):
    """What the four ranges share: bounds, steps, a scale, and the points of a grid on it."""

    logarithmic: ClassVar[bool] = False
    bound_tolerance: ClassVar[float] = 1e-9
    """How far outside of a bound a float counts as that bound, as a share of it."""
    fewest_points: ClassVar[int] = 2

    min: float
    max: float
    step: float | None = None
    points: int | None = None
    prior: float | None = None

    def _check(self) -> None:
        for name in ("min", "max"):
            self._take(name, integer if self.whole else number)
        if self.logarithmic and self.min <= 0:
            raise InvalidKey(("min",), f"must be greater than 0 on a logarithmic scale, got {self.min}")
        if self.max <= self.min:
            advice = "a single value is a constant" if self.max == self.min else ""
            raise InvalidKey(("max",), f"must be greater than min ({self.min}), got {self.max}", advice)
        super()._check()
        if self.step is not None:
            self._check_steps(self.step)
        self._take_prior()

    def _check_steps(self, step: float) -> None:
        steps = self.steps
        if steps is None:
            raise InvalidKey(("step",), f"must not be so small against {self.min} and {self.max}, got {step}")
        if steps.count < 1:
            raise InvalidKey(("step",), f"must have a multiple between {self.min} and {self.max}, got {step}")
        if isinstance(step, int) and max(abs(steps.first), abs(steps.last)) * step >= 2**63:
            raise InvalidKey(("max",), f"must fit 64 bits where the step is an integer, got {self.max}")

    @cached_property
    def steps(self) -> Steps | None:
        if self.step is not None:
            return Steps.between(self.step, self.min, self.max)
        return Steps(1, int(self.min), int(self.max)) if self.whole else None

    @property
    def ends(self) -> tuple[int | float, int | float]:
        steps = self.steps
        return (self.min, self.max) if steps is None else (steps.value(steps.first), steps.value(steps.last))

    @cached_property
    def _scale_ends(self) -> tuple[float, float]:
        return (math.log(self.min), math.log(self.max)) if self.logarithmic else (self.min, self.max)

    def at(self, share: float) -> float:
        """Give the value at this share of the way from min to max, on the range's own scale."""
        low, high = self._scale_ends
        # Not low + share * (high - low): the difference of two large floats may overflow.
        place = low * (1.0 - share) + high * share
        value = math.exp(min(place, high)) if self.logarithmic else place
        return min(max(value, self.min), self.max)

    def place(self, value: float) -> float:
        low, high = self._scale_ends
        there = math.log(value) if self.logarithmic else value
        # Halves: the difference of two large floats may overflow.
        width = high / 2 - low / 2
        # Neighbouring floats may have one logarithm, and the smallest one no half.
        return (there / 2 - low / 2) / width if width > 0 else 0.5

    def grid(self) -> list[int | float]:
        steps = self.steps
        if self.points is not None:
            exact = (logarithmic if self.logarithmic else linear)(self.min, self.max, self.points)
            return list(dict.fromkeys(map(float if steps is None else steps.nearest, exact)))
        values = self.every_value()
        if values is None:
            many = "a continuous parameter" if steps is None else f"{steps.count} values (more than {GRID_LIMIT})"
            raise InvalidKey(("points",), f"is required for a grid over {many}", add=((), "points: 5"))
        return values

    def every_value(self) -> list[int | float] | None:
        steps = self.steps
        if steps is None or steps.count > GRID_LIMIT:
            return None
        return [steps.value(multiple) for multiple in range(steps.first, steps.last + 1)]

    def draw(self, bits: int) -> int | float:
        return self.snap(self.at(share_of(bits)))

    def near(self, bits: int) -> int | float:
        return self.draw(bits if self.prior is None else bits_near(self.share(self.prior), bits))

    def accept(self, value: object) -> int | float:
        got = integer(value, ()) if self.whole else number(value, ())
        at_bound = min(max(got, self.min), self.max)
        if got != at_bound and (self.whole or not math.isclose(got, at_bound, rel_tol=self.bound_tolerance)):
            raise InvalidKey((), f"must be between {self.min} and {self.max}, got {got}")
        return self._accept_multiple(at_bound)


@dataclass(frozen=True)
class Uniform(_Range):
    """A float between min and max, each equally likely. With a step, the two end values get half a share."""

    kind: ClassVar[str] = "uniform"


@dataclass(frozen=True)
class LogUniform(_Range):
    """A float between min and max whose logarithm is uniform; the bounds are values, not exponents."""

    kind: ClassVar[str] = "log_uniform"
    logarithmic: ClassVar[bool] = True
    bound_tolerance: ClassVar[float] = 1e-3
    """The bounds may come from logarithms that were rounded by hand: e^-6.9077 is 0.00100006."""


@dataclass(frozen=True)
class _IntRange(_Range):
    whole: ClassVar[bool] = True

    min: int
    max: int
    step: int | None = None
    prior: int | None = None

    def draw(self, bits: int) -> int:
        steps = self.steps
        assert steps is not None
        return int(steps.value(steps.first + self._place(bits, steps)))

    @abstractmethod
    def _place(self, bits: int, steps: Steps) -> int:
        """Say which multiple is drawn, counted from the first."""

    def share(self, value: float) -> float:
        steps = self.steps
        assert steps is not None
        return self._middle(steps.multiple(value) - steps.first, steps)

    @abstractmethod
    def _middle(self, place: int, steps: Steps) -> float:
        """Give the middle of the shares for which this multiple, counted from the first, is drawn."""


@dataclass(frozen=True)
class IntUniform(_IntRange):
    """An integer from min to max, both included, each (with a step: each multiple of it) equally likely."""

    kind: ClassVar[str] = "int_uniform"

    def _place(self, bits: int, steps: Steps) -> int:
        return bits * steps.count >> DRAW_BITS

    def _middle(self, place: int, steps: Steps) -> float:
        return (2 * place + 1) / (2 * steps.count)


@dataclass(frozen=True)
class LogIntUniform(_IntRange):
    """An integer from min to max, both included; k is as likely as a log-uniform float is to lie in [k, k + 1).

    With a step, its multiple k * step is as likely as one in [k * step, (k + 1) * step). So where the multiples are
    those from a * step to b * step, k has the share ln((k + 1) / k) / ln((b + 1) / a), the first and the last as all
    others, and the step only multiplies what is drawn without one from a to b.
    """

    kind: ClassVar[str] = "log_int_uniform"
    logarithmic: ClassVar[bool] = True

    def _place(self, bits: int, steps: Steps) -> int:
        # a * ((b + 1) / a)**share - a, without the difference of two large numbers that would lose its last digits.
        above = steps.first * math.expm1(share_of(bits) * math.log1p(steps.count / steps.first))
        return min(int(above), steps.count - 1)

    def _middle(self, place: int, steps: Steps) -> float:
        both = math.log1p(place / steps.first) + math.log1p((place + 1) / steps.first)
        return both / 2 / math.log1p(steps.count / steps.first)
