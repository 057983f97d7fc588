"""Bounded ranges of numbers: uniform or log-uniform, of floats or of integers.

A `step` means what W&B's `q` means: values are multiples of it, here always those inside [min, max]; an
integer step gives integers. `points` spaces a grid on the range's own scale, both ends included, and exactly.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from hpsearch.checks import InvalidKey, integer, number, refuse
from hpsearch.seeds import DRAW_BITS
from hpsearch.space._spacing import linear, logarithmic
from hpsearch.space._steps import Steps
from hpsearch.space.distribution import GRID_LIMIT, Distribution, share_of

__all__ = ["IntUniform", "LogIntUniform", "LogUniform", "Uniform", "checked_points", "checked_step"]


def checked_step(owner: Distribution, step: object, whole: bool = False) -> int | float | None:
    """Check a step; an integer stays one."""
    if step is None:
        return None
    try:
        out = integer(step, ("step",)) if whole or isinstance(step, int) else number(step, ("step",))
    except InvalidKey as error:
        refuse(owner, error.key, error.problem)
    if out <= 0:
        refuse(owner, "step", f"must be greater than 0, got {out}")
    return out


def checked_points(owner: Distribution, points: object, lowest: int) -> int | None:
    """Check the number of points of a grid."""
    if points is None:
        return None
    try:
        out = integer(points, ("points",))
    except InvalidKey as error:
        refuse(owner, error.key, error.problem)
    if not lowest <= out <= GRID_LIMIT:
        refuse(owner, "points", f"must be between {lowest} and {GRID_LIMIT}, got {out}")
    return out


class _Range(Distribution):
    """What the four ranges share: bounds, steps, a scale, and the points of a grid on it."""

    min: float
    max: float
    step: float | None
    points: int | None
    whole: ClassVar[bool] = False
    logarithmic: ClassVar[bool] = False

    def __post_init__(self) -> None:
        read = integer if self.whole else number
        for name in ("min", "max"):
            try:
                object.__setattr__(self, name, read(getattr(self, name), (name,)))
            except InvalidKey as error:
                refuse(self, error.key, error.problem)
        if self.logarithmic and self.min <= 0:
            refuse(self, "min", f"must be greater than 0 on a logarithmic scale, got {self.min}")
        if self.max <= self.min:
            advice = "a single value is a constant" if self.max == self.min else ""
            refuse(self, "max", f"must be greater than min ({self.min}), got {self.max}", advice)
        object.__setattr__(self, "step", checked_step(self, self.step, self.whole))
        object.__setattr__(self, "points", checked_points(self, self.points, 2))
        if self.step is not None:
            self._check_steps(self.step)

    def _check_steps(self, step: float) -> None:
        steps = Steps.between(step, self.min, self.max)
        if steps is None:
            refuse(self, "step", f"must not be so small against {self.min} and {self.max}, got {step}")
        if steps.count < 1:
            refuse(self, "step", f"must have a multiple between {self.min} and {self.max}, got {step}")
        if isinstance(step, int) and max(abs(steps.first), abs(steps.last)) * step >= 2**63:
            refuse(self, "max", f"must fit 64 bits where the step is an integer, got {self.max}")

    @cached_property
    def steps(self) -> Steps | None:
        """The multiples that values are; None where every float in the range is one."""
        if self.step is not None:
            return Steps.between(self.step, self.min, self.max)
        return Steps(1, int(self.min), int(self.max)) if self.whole else None

    @cached_property
    def _ends(self) -> tuple[float, float]:
        return (math.log(self.min), math.log(self.max)) if self.logarithmic else (self.min, self.max)

    def at(self, share: float) -> float:
        """Give the value at this share of the way from min to max, on the range's own scale."""
        low, high = self._ends
        # Not low + share * (high - low): the difference of two large floats may overflow.
        place = low * (1.0 - share) + high * share
        value = math.exp(min(place, high)) if self.logarithmic else place
        return min(max(value, self.min), self.max)

    def grid(self) -> list[int | float]:
        if self.points is None:
            return self._every_step()
        exact = (logarithmic if self.logarithmic else linear)(self.min, self.max, self.points)
        values = map(float, exact) if self.steps is None else map(self.steps.nearest, exact)
        return list(dict.fromkeys(values))

    def _every_step(self) -> list[int | float]:
        steps = self.steps
        if steps is None or steps.count > GRID_LIMIT:
            many = "a continuous parameter" if steps is None else f"{steps.count} values (more than {GRID_LIMIT})"
            raise InvalidKey(("points",), f"is required for a grid over {many}", add=((), "points: 5"))
        return [steps.value(multiple) for multiple in range(steps.first, steps.last + 1)]

    def accept(self, value: object) -> int | float:
        got = integer(value, ()) if self.whole else number(value, ())
        if not self.min <= got <= self.max:
            raise InvalidKey((), f"must be between {self.min} and {self.max}, got {got}")
        if self.steps is None:
            return got
        snapped = self.steps.snap(got)
        if not math.isclose(snapped, got, rel_tol=1e-9, abs_tol=1e-9 * float(self.steps.size)):
            raise InvalidKey((), f"must be a multiple of {self.step}, got {got}")
        return snapped


class _FloatRange(_Range):
    def draw(self, bits: int) -> int | float:
        value = self.at(share_of(bits))
        return value if self.steps is None else self.steps.snap(value)


@dataclass(frozen=True)
class Uniform(_FloatRange):
    """A float between min and max, each equally likely. With a step, the two end values get half a share."""

    kind: ClassVar[str] = "uniform"

    min: float
    max: float
    step: float | None = None
    points: int | None = None


@dataclass(frozen=True)
class LogUniform(_FloatRange):
    """A float between min and max whose logarithm is uniform; the bounds are values, not exponents."""

    kind: ClassVar[str] = "log_uniform"
    logarithmic: ClassVar[bool] = True

    min: float
    max: float
    step: float | None = None
    points: int | None = None


class _IntRange(_Range):
    min: int
    max: int
    step: int | None
    whole: ClassVar[bool] = True

    def draw(self, bits: int) -> int:
        steps = self.steps
        assert steps is not None
        return int(steps.value(steps.first + self._place(bits, steps)))

    @abstractmethod
    def _place(self, bits: int, steps: Steps) -> int:
        """Say which multiple is drawn, counted from the first."""


@dataclass(frozen=True)
class IntUniform(_IntRange):
    """An integer from min to max, both included, each (with a step: each multiple of it) equally likely."""

    kind: ClassVar[str] = "int_uniform"

    min: int
    max: int
    step: int | None = None
    points: int | None = None

    def _place(self, bits: int, steps: Steps) -> int:
        return bits * steps.count >> DRAW_BITS


@dataclass(frozen=True)
class LogIntUniform(_IntRange):
    """An integer from min to max, both included; k is as likely as a log-uniform float is to lie in [k, k + 1).

    With a step, its multiple k * step is as likely as one in [k * step, (k + 1) * step). So where the multiples are
    those from a * step to b * step, k has the share ln((k + 1) / k) / ln((b + 1) / a), the first and the last as all
    others, and the step only multiplies what is drawn without one from a to b.
    """

    kind: ClassVar[str] = "log_int_uniform"
    logarithmic: ClassVar[bool] = True

    min: int
    max: int
    step: int | None = None
    points: int | None = None

    def _place(self, bits: int, steps: Steps) -> int:
        # a * ((b + 1) / a)**share - a, without the difference of two large numbers that would lose its last digits.
        above = steps.first * math.expm1(share_of(bits) * math.log1p(steps.count / steps.first))
        return min(int(above), steps.count - 1)
