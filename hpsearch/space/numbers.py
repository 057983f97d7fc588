"""Distributions of numbers: uniform or log-uniform in a range, of floats or integers; normal and log-normal.

With a `step`, like W&B's `q`, values are its multiples. `points` spaces a grid: exactly on the scale of a range, both
ends included; of a normal by quantiles, so that grid value i is the quantile of (i + 0.5) / points.

A `prior` is a value that is believed to be good. Sampling near it uses a truncated normal on the unit scale, centered
at the value for floats, and at the middle of the interval that selects the value for integers.
"""

from __future__ import annotations

import math
import sys
from abc import abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist
from typing import ClassVar

from hpsearch.config.checks import InvalidKey, integer, number
from hpsearch.seeds import DRAW_BITS
from hpsearch.space._decimals import MOST_STEPS, Multiples, linear, logarithmic
from hpsearch.space.distribution import GRID_LIMIT, Numeric, bits_of_mixture, share_of
from hpsearch.trial import Value

_LARGEST = sys.float_info.max
_SMALLEST = sys.float_info.min


@dataclass(frozen=True)
class _Range(Numeric):
    """Base class of the four ranges: bounds, steps in [min, max], scale, and grid."""

    logarithmic: ClassVar[bool] = False
    bound_tolerance: ClassVar[float] = 1e-9
    """Relative tolerance within which a float outside the range counts as its bound."""
    fewest_points: ClassVar[int] = 2

    min: float
    max: float
    step: float | None = None
    points: int | None = None
    prior: float | None = None
    default: float | None = None

    def _check(self) -> None:
        for name in ("min", "max"):
            self._set(name, integer if self.is_integer else number)
        if self.logarithmic and self.min <= 0:
            raise InvalidKey(("min",), f"must be greater than 0 on a logarithmic scale, got {self.min}")
        if self.max <= self.min:
            advice = "a single value is a constant" if self.max == self.min else ""
            raise InvalidKey(("max",), f"must be greater than min ({self.min}), got {self.max}", advice)
        super()._check()
        if self.step is not None:
            self._check_steps(self.step)
        self._set_accepted("prior")

    def _check_steps(self, step: float) -> None:
        steps = self.steps
        if steps is None:
            raise InvalidKey(("step",), f"must not be so small against {self.min} and {self.max}, got {step}")
        if steps.count < 1:
            raise InvalidKey(("step",), f"must have a multiple between {self.min} and {self.max}, got {step}")
        if isinstance(step, int) and max(abs(steps.first), abs(steps.last)) * step >= 2**63:
            raise InvalidKey(("max",), f"must fit 64 bits where the step is an integer, got {self.max}")

    @cached_property
    def steps(self) -> Multiples | None:
        if self.step is not None:
            return Multiples.between(self.step, self.min, self.max)
        return Multiples(1, int(self.min), int(self.max)) if self.is_integer else None

    @property
    def ends(self) -> tuple[int | float, int | float]:
        steps = self.steps
        return (self.min, self.max) if steps is None else (steps.value(steps.first), steps.value(steps.last))

    @cached_property
    def _scale_ends(self) -> tuple[float, float]:
        return (math.log(self.min), math.log(self.max)) if self.logarithmic else (self.min, self.max)

    def at(self, share: float) -> float:
        """Return the value at a fraction of the way from min to max, on the scale of the range."""
        low, high = self._scale_ends
        # Not low + share * (high - low): the difference of two large floats may overflow.
        scaled = low * (1.0 - share) + high * share
        value = math.exp(min(scaled, high)) if self.logarithmic else scaled
        return min(max(value, self.min), self.max)

    def position(self, value: float) -> float:
        low, high = self._scale_ends
        scaled = math.log(value) if self.logarithmic else value
        # Halves: the difference of two large floats may overflow.
        width = high / 2 - low / 2
        # The width can be 0: neighbouring floats may have the same logarithm, and half of the smallest float is 0.
        return (scaled / 2 - low / 2) / width if width > 0 else 0.5

    def grid(self) -> list[int | float]:
        steps = self.steps
        if self.points is not None:
            exact = (logarithmic if self.logarithmic else linear)(self.min, self.max, self.points)
            return list(dict.fromkeys(map(float if steps is None else steps.nearest, exact)))
        values = self.every_value()
        if values is None:
            size = "a continuous parameter" if steps is None else f"{steps.count} values (more than {GRID_LIMIT})"
            raise InvalidKey(("points",), f"is required for a grid over {size}", add=((), "points: 5"))
        return values

    def draw(self, bits: int) -> int | float:
        return self.snap(self.at(share_of(bits)))

    def accept(self, value: object) -> int | float:
        checked = integer(value, ()) if self.is_integer else number(value, ())
        clipped = min(max(checked, self.min), self.max)
        if checked != clipped and (self.is_integer or not math.isclose(checked, clipped, rel_tol=self.bound_tolerance)):
            raise InvalidKey((), f"must be between {self.min} and {self.max}, got {checked}")
        return self._accept_multiple(clipped)


@dataclass(frozen=True)
class Uniform(_Range):
    """A uniform float between min and max. With a step, the two end values are half as likely as the others."""

    kind: ClassVar[str] = "uniform"


@dataclass(frozen=True)
class LogUniform(_Range):
    """A float between min and max whose logarithm is uniform. The bounds are values, not exponents."""

    kind: ClassVar[str] = "log_uniform"
    logarithmic: ClassVar[bool] = True
    bound_tolerance: ClassVar[float] = 1e-3
    """Bounds are often computed from rounded logarithms: e^-6.9077 is 0.00100006."""


_ZERO = (1, 4)
"""Probability of 0 in `ZeroOrLogUniform`, as a fraction."""


@dataclass(frozen=True)
class ZeroOrLogUniform(Numeric):
    """0 with probability 1/4, otherwise a float between min and max whose logarithm is uniform.

    On the unit scale, 0 is the first quarter, below all other values. So models see one number whose smallest value is
    0, at a distance from the range.
    """

    kind: ClassVar[str] = "zero_or_log_uniform"
    fewest_points: ClassVar[int] = 2

    min: float
    max: float
    points: int | None = None
    prior: float | None = None
    default: float | None = None
    step: float | None = field(default=None, init=False)

    def _check(self) -> None:
        for name in ("min", "max"):
            object.__setattr__(self, name, getattr(self.positive, name))
        super()._check()
        self._set_accepted("prior")

    @cached_property
    def positive(self) -> LogUniform:
        """The distribution of the values above 0."""
        return LogUniform(self.min, self.max, points=self.points)

    @property
    def steps(self) -> None:
        """None: it is continuous."""
        return

    @property
    def ends(self) -> tuple[float, float]:
        """0, and max."""
        return 0.0, self.max

    def position(self, value: float) -> float:
        """Return the position on the unit scale: the middle of the first quarter for 0."""
        zero = _ZERO[0] / _ZERO[1]
        return zero / 2 if value == 0 else zero + (1 - zero) * self.positive.position(value)

    def draw(self, bits: int) -> float:
        """Return 0, or a value of the range."""
        others = bits_of_mixture(*_ZERO, bits)
        return 0.0 if others is None else float(self.positive.draw(others))

    def grid(self) -> list[int | float]:
        """Return 0, and the grid of the range."""
        return [0.0, *self.positive.grid()]

    def accept(self, value: object) -> float:
        """Return 0, or a value of the range."""
        checked = number(value, ())
        if checked == 0:
            return 0.0
        try:
            return float(self.positive.accept(checked))
        except InvalidKey as error:
            raise InvalidKey((), error.problem.replace("must be", "must be 0, or", 1)) from None

    def neighbours(self, value: Value) -> list[Value]:
        """Return the numbers `MOVE` below and above on the unit scale; 0 and min are next to each other."""
        if value == 0:
            return [self.min]
        return [*([0.0] if value == self.min else []), *super().neighbours(value)]

    def _next_to(self, value: float, above: bool) -> int | float:
        if value == 0:
            return self.min
        return 0.0 if value == self.min and not above else super()._next_to(value, above)


@dataclass(frozen=True)
class _IntRange(_Range):
    is_integer: ClassVar[bool] = True

    min: int
    max: int
    step: int | None = None
    prior: int | None = None
    default: int | None = None

    def draw(self, bits: int) -> int:
        steps = self.steps
        assert steps is not None
        return int(steps.value(steps.first + self._index(bits, steps)))

    @abstractmethod
    def _index(self, bits: int, steps: Multiples) -> int:
        """Return the index of the multiple that the bits select, from 0."""

    def share(self, value: float) -> float:
        steps = self.steps
        assert steps is not None
        return self._middle(steps.multiple(value) - steps.first, steps)

    @abstractmethod
    def _middle(self, index: int, steps: Multiples) -> float:
        """Return the middle of the interval of the unit scale that selects the multiple of an index."""


@dataclass(frozen=True)
class IntUniform(_IntRange):
    """A uniform integer from min to max, both included. With a step, a uniform multiple of it."""

    kind: ClassVar[str] = "int_uniform"

    def _index(self, bits: int, steps: Multiples) -> int:
        return bits * steps.count >> DRAW_BITS

    def _middle(self, index: int, steps: Multiples) -> float:
        return (2 * index + 1) / (2 * steps.count)


@dataclass(frozen=True)
class LogIntUniform(_IntRange):
    """A log-uniform integer from min to max, both included.

    k has the probability that a log-uniform float is in [k, k + 1). With a step, k * step has the probability that it
    is in [k * step, (k + 1) * step). If the multiples are a * step to b * step, that is ln((k + 1) / k) / ln((b + 1) /
    a), also for the first and the last.
    """

    kind: ClassVar[str] = "log_int_uniform"
    logarithmic: ClassVar[bool] = True

    def _index(self, bits: int, steps: Multiples) -> int:
        # a * ((b + 1) / a)**share - a, without the difference of two large numbers, which would lose digits.
        above = steps.first * math.expm1(share_of(bits) * math.log1p(steps.count / steps.first))
        return min(int(above), steps.count - 1)

    def _middle(self, index: int, steps: Multiples) -> float:
        both = math.log1p(index / steps.first) + math.log1p((index + 1) / steps.first)
        return both / 2 / math.log1p(steps.count / steps.first)


@dataclass(frozen=True)
class _Normal(Numeric):
    fewest_points: ClassVar[int] = 1

    mu: float = 0.0
    sigma: float = 1.0
    step: float | None = None
    points: int | None = None
    default: float | None = None

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
        probability = share_of(bits, 52) + 2.0**-53
        return self.at_deviations(NormalDist().inv_cdf(probability))

    def grid(self) -> list[int | float]:
        if self.points is None:
            raise InvalidKey(("points",), "is required for a grid over an unbounded parameter", add=((), "points: 5"))
        quantile = NormalDist().inv_cdf
        shares = [(index + 0.5) / self.points for index in range(self.points)]
        return list(dict.fromkeys(self.at_deviations(quantile(probability)) for probability in shares))

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
