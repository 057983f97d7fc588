"""Bounded ranges of numbers: uniform or log-uniform, of floats or of integers.

A `step` means what W&B's `q` means: values are multiples of it, here always those inside [min, max]; an
integer step gives integers. `points` spaces a grid on the range's own scale, both ends included.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from hpsearch._sweep_checks import InvalidKey, integer, number, refuse
from hpsearch.space._steps import Steps
from hpsearch.space.distribution import GRID_LIMIT, Distribution

if TYPE_CHECKING:
    from numpy.random import Generator

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
    def _steps(self) -> Steps | None:
        return None if self.step is None else Steps.between(self.step, self.min, self.max)

    @cached_property
    def _ends(self) -> tuple[float, float]:
        return (math.log(self.min), math.log(self.max)) if self.logarithmic else (self.min, self.max)

    def _at(self, share: float) -> float:
        """Give the value at this share of the way from min to max, on the range's own scale."""
        low, high = self._ends
        # Not low + share * (high - low): the difference of two large floats may overflow.
        place = low * (1.0 - share) + high * share
        value = math.exp(min(place, high)) if self.logarithmic else place
        return min(max(value, self.min), self.max)

    def grid(self) -> list[int | float]:
        if self.points is not None:
            inner = [_tidy(self._at(place / (self.points - 1))) for place in range(1, self.points - 1)]
            inside = [min(max(value, self.min), self.max) for value in inner]
            return list(dict.fromkeys(self._snap(value) for value in (self.min, *inside, self.max)))
        return self._all_values()

    @abstractmethod
    def _snap(self, value: float) -> int | float: ...

    @abstractmethod
    def _all_values(self) -> list[int | float]: ...

    def _every_step(self, steps: Steps) -> list[int | float]:
        if steps.count > GRID_LIMIT:
            raise InvalidKey(
                ("points",),
                f"is required for a grid over {steps.count} values (more than {GRID_LIMIT})",
                add=((), "points: 5"),
            )
        return [steps.value(multiple) for multiple in range(steps.first, steps.last + 1)]

    def accept(self, value: object) -> int | float:
        got = integer(value, ()) if self.whole else number(value, ())
        if not self.min <= got <= self.max:
            raise InvalidKey((), f"must be between {self.min} and {self.max}, got {got}")
        if self._steps is None:
            return got
        snapped = self._steps.snap(got)
        if not math.isclose(snapped, got, rel_tol=1e-9, abs_tol=1e-9 * float(self._steps.size)):
            raise InvalidKey((), f"must be a multiple of {self.step}, got {got}")
        return snapped


class _FloatRange(_Range):
    def sample(self, rng: Generator) -> int | float:
        value = self._at(rng.random())
        return value if self._steps is None else self._steps.snap(value)

    def _snap(self, value: float) -> int | float:
        return value if self._steps is None else self._steps.snap(value)

    def _all_values(self) -> list[int | float]:
        if self._steps is not None:
            return self._every_step(self._steps)
        raise InvalidKey(("points",), "is required for a grid over a continuous parameter", add=((), "points: 5"))


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

    @cached_property
    def _multiples(self) -> Steps:
        return self._steps or Steps(1, self.min, self.max)

    def _snap(self, value: float) -> int | float:
        return self._multiples.snap(value)

    def _all_values(self) -> list[int | float]:
        return self._every_step(self._multiples)


@dataclass(frozen=True)
class IntUniform(_IntRange):
    """An integer from min to max, both included, each (with a step: each multiple of it) equally likely."""

    kind: ClassVar[str] = "int_uniform"

    min: int
    max: int
    step: int | None = None
    points: int | None = None

    def sample(self, rng: Generator) -> int:
        """Draw an integer."""
        steps = self._multiples
        return int(steps.value(int(rng.integers(steps.first, steps.last, endpoint=True))))


@dataclass(frozen=True)
class LogIntUniform(_IntRange):
    """An integer from min to max, both included; k is as likely as a log-uniform float in [k, k + 1)."""

    kind: ClassVar[str] = "log_int_uniform"
    logarithmic: ClassVar[bool] = True

    min: int
    max: int
    step: int | None = None
    points: int | None = None

    def sample(self, rng: Generator) -> int:
        """Draw an integer."""
        share = rng.random()
        floor = math.floor(math.exp(self._ends[0] * (1.0 - share) + math.log(self.max + 1) * share))
        return int(self._multiples.snap(min(max(floor, self.min), self.max)))


def _tidy(value: float) -> float:
    """Cut float dust off a point of a grid: 0.0010000000000000002 is 0.001."""
    return float(f"{value:.12g}")
