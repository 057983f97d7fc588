"""Base classes of the distributions: `Distribution`, and `Numeric` for numbers; and how random bits select values."""

from __future__ import annotations

import copy
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import fields
from statistics import NormalDist
from typing import ClassVar

from hpsearch.config.checks import InvalidKey, KeyPath, integer, number, plain, under
from hpsearch.seeds import DRAW_BITS
from hpsearch.space._decimals import Multiples
from hpsearch.trial import Value

GRID_LIMIT = 1_000_000
"""Maximum number of grid values of a parameter."""

MOVE = 0.1
"""Standard deviation of a near mutation on the unit scale."""

_PRIOR_DEVIATION = 0.25
"""Standard deviation around a prior: that of Mallik et al., "PriorBand: Practical Hyperparameter Optimization in the
Age of Deep Learning", NeurIPS 2023."""

_PRECISION = 53
_LEAST = 2.0**-_PRECISION
"""Smallest probability mass: more than eight standard deviations from the center, where nothing is sampled."""
_STANDARD = NormalDist()


def own_copy(value: Value) -> Value:
    """Return a copy of a container, so that a trainable that modifies its params does not modify others'."""
    return copy.deepcopy(value) if isinstance(value, list | dict) else value


def share_of(bits: int, precision: int = 53) -> float:
    """Return the leading bits of a draw as a number in [0, 1), by default as many as fit in a float."""
    return math.ldexp(bits >> (DRAW_BITS - precision), -precision)


class Distribution(ABC):
    """The distribution of a parameter. Immutable, and validated when it is built."""

    kind: ClassVar[str]
    """Name in JSON."""
    prior: Value = None
    """A value that is believed to be good; None: no prior."""
    default: Value = None
    """The value of trials that lack the parameter because their search didn't have it; None: unknown."""
    searched: ClassVar[bool] = True
    """Whether the value is chosen by the search. False for constants and derived values."""

    def __post_init__(self) -> None:
        try:
            self._check()
            self._set_accepted("default")
        except InvalidKey as error:
            subject = type(self).__name__
            raise InvalidKey(error.key, error.problem, error.advice, subject=subject) from None

    @abstractmethod
    def _check(self) -> None:
        """Validate the arguments, and store them as plain values.

        Raises:
            InvalidKey: An argument is wrong.
        """

    def _set(self, name: str, read: Callable[[object, KeyPath], Value]) -> None:
        """Replace an argument by the plain value that `read` returns for it."""
        object.__setattr__(self, name, read(getattr(self, name), (name,)))

    def _set_accepted(self, name: str) -> None:
        """Replace an argument, unless it is None, by the equal value that would have been sampled."""
        value = getattr(self, name)
        if value is not None:
            with under((name,)):
                object.__setattr__(self, name, self.accept(value))

    @abstractmethod
    def draw(self, bits: int) -> Value:
        """Return the plain Python value that these random bits select.

        Args:
            bits: Uniform random bits, 0 <= bits < 2**`DRAW_BITS`.
        """

    def quantile(self, share: float) -> Value:
        """Return the value below which this share of the samples lies, 0 <= share <= 1; 0.5 is the median."""
        return self.draw(min(int(share * 2**DRAW_BITS), 2**DRAW_BITS - 1))

    def near(self, bits: int) -> Value:
        """Return a value near the prior; without a prior the same as `draw`."""
        return self.draw(bits)

    @abstractmethod
    def grid(self) -> list[Value]:
        """Return the grid values in order, without duplicates.

        Raises:
            InvalidKey: The range is continuous or too long, and `points` is not set.
        """

    def every_value(self) -> Sequence[Value] | None:
        """Return all values that can be sampled, without duplicates; None if they are too many to list."""
        return None

    @abstractmethod
    def accept(self, value: object) -> Value:
        """Return a value as this distribution would have sampled it (`1` becomes `1.0` in a float range).

        Raises:
            InvalidKey: The value cannot be sampled.
        """

    def mutable(self, value: Value) -> bool:
        """Return whether a value other than this one can be sampled."""
        return False

    def mutate(self, value: Value, bits: int) -> Value:
        """Return a value other than this one, for `Space.mutate`.

        Args:
            value: As `accept` returns it.
            bits: Uniform random bits, as for `draw`.

        Raises:
            ValueError: There is no other value; see `mutable`.
        """
        raise ValueError(f"{type(self).__name__} must have another value than {value!r} to be mutated")

    def neighbours(self, value: Value) -> list[Value]:
        """Return the values one step away: every other choice, or the next smaller and larger number.

        Args:
            value: As `accept` returns it.
        """
        return []

    def to_json(self) -> dict[str, Value]:
        """Return the distribution as JSON; `distribution_from_json` reads it."""
        arguments = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {"distribution": self.kind} | {
            name: plain(value) for name, value in arguments.items() if value is not None or name == "value"
        }


class Numeric(Distribution):
    """A distribution of numbers. With a `step`, like W&B's `q`, values are its multiples (integers if it is one)."""

    step: float | None
    points: int | None
    is_integer: ClassVar[bool] = False
    """Whether all values are integers."""
    fewest_points: ClassVar[int]
    """Minimum number of points of a grid."""

    @property
    @abstractmethod
    def steps(self) -> Multiples | None:
        """The multiples that values are rounded to; None for a continuous parameter."""

    def _check(self) -> None:
        if self.step is not None:
            self._set("step", integer if self.is_integer or isinstance(self.step, int) else number)
            if self.step <= 0:
                raise InvalidKey(("step",), f"must be greater than 0, got {self.step}")
            if self.step < sys.float_info.min:  # its multiples could not be told apart
                least = f"must be at least {sys.float_info.min}, since smaller floats have fewer digits"
                raise InvalidKey(("step",), f"{least}, got {self.step}")
        if self.points is not None:
            self._set("points", integer)
            if not self.fewest_points <= self.points <= GRID_LIMIT:
                problem = f"must be between {self.fewest_points} and {GRID_LIMIT}, got {self.points}"
                raise InvalidKey(("points",), problem)

    @abstractmethod
    def position(self, value: float) -> float:
        """Return the position of a value on the distribution's scale: 0 to 1 if it can be sampled.

        Raises:
            ValueError: The value has no position on the scale.
        """

    @property
    @abstractmethod
    def ends(self) -> tuple[int | float, int | float]:
        """The smallest and the largest value that can be sampled."""

    def share(self, value: float) -> float:
        """Return the position of a value on the unit scale of the draws, in [0, 1]."""
        return min(max(self.position(value), 0.0), 1.0)

    def near(self, bits: int) -> Value:
        """Return a value near the prior on the unit scale; without a prior the same as `draw`."""
        return self.draw(bits if self.prior is None else bits_near(self.share(self.prior), bits))

    def every_value(self) -> list[Value] | None:
        """Return the multiples from the smallest to the largest that can be sampled; None if they are too many."""
        steps = self.steps
        if steps is None:
            return None
        least, greatest = map(steps.multiple, self.ends)
        if greatest - least >= GRID_LIMIT:
            return None
        return [steps.value(multiple) for multiple in range(least, greatest + 1)]

    def mutable(self, value: Value) -> bool:
        """Return whether a number other than this one can be sampled."""
        return not self.ends[0] == value == self.ends[1]

    def mutate(self, value: Value, bits: int) -> Value:
        """Return another number: near this one with probability 3/4, otherwise from the whole range.

        Near means a normal around the number on the unit scale of the draws, so that a logarithmic range moves by
        factors and a normal by quantiles. If the draw is the number itself, which is likely if there are few multiples,
        the next number on the side of the draw is returned.

        Real et al. only mutate choices. For numbers, Syne Tune's evolution samples a new value, which loses the good
        value of the parent. The polynomial mutation of Deb and Goyal (GeneAS, 1996) with its usual index of 20 moves by
        a twentieth of the range and almost never by half of it, so a population cannot leave a valley. This combines
        both, with the probabilities with which Ray Tune's population-based training perturbs and resamples.
        docs/benchmarks.md compares other probabilities.
        """
        if not self.mutable(value):
            return super().mutate(value, bits)
        center = self.share(value)
        moved = bits if bits % 4 == 0 else bits_near(center, bits, MOVE)
        drawn = self.draw(moved)
        return drawn if drawn != value else self._next_to(value, share_of(moved) >= center)

    def neighbours(self, value: Value) -> list[Value]:
        """Return the next smaller and larger multiple, or the numbers `MOVE` below and above on the unit scale."""
        least, greatest = self.ends
        if self.steps is not None:
            return [self._next_to(value, above) for above, end in ((False, least), (True, greatest)) if value != end]
        positions = [self.share(value) + move for move in (-MOVE, MOVE)]
        drawn = [self.quantile(position) for position in positions if 0 <= position <= 1]
        return [near for near in drawn if near != value]

    def _next_to(self, value: float, above: bool) -> int | float:
        """Return the next number above or below a number; the other side if the number is an end of the range."""
        least, greatest = self.ends
        above = value < greatest and (above or value <= least)
        if self.steps is None:
            return math.nextafter(value, math.inf if above else -math.inf)
        return self.steps.value(self.steps.multiple(value) + (1 if above else -1))

    def snap(self, value: float) -> int | float:
        """Return the multiple nearest to a value, or the value itself if there is no step."""
        return value if self.steps is None else self.steps.snap(value)

    def _accept_multiple(self, value: float) -> int | float:
        """Return the multiple of the step that a value is, up to rounding errors."""
        if self.steps is None:
            return value
        snapped = self.steps.snap(value)
        if not math.isclose(snapped, value, rel_tol=1e-9, abs_tol=1e-9 * float(self.steps.size)):
            raise InvalidKey((), f"must be a multiple of {self.step}, got {value}")
        return snapped


def bits_near(center: float, bits: int, deviation: float = _PRIOR_DEVIATION) -> int:
    """Return the random bits of a draw near `center`, from a truncated normal on the unit scale of the distribution.

    Args:
        center: Center of the draws on the unit scale, in [0, 1].
        bits: Uniform random bits. The result grows with them.
        deviation: Standard deviation of the normal, before it is truncated.
    """
    below, above = _STANDARD.cdf(-center / deviation), _STANDARD.cdf((1.0 - center) / deviation)
    low_bits = DRAW_BITS - _PRECISION
    mass = below + math.ldexp(bits >> low_bits, -_PRECISION) * (above - below)
    position = center + deviation * _STANDARD.inv_cdf(min(max(mass, _LEAST), 1.0 - _LEAST))
    first = min(max(int(math.ldexp(position, _PRECISION)), 0), (1 << _PRECISION) - 1)
    # Keep the low bits: without them, a range of more than 2**53 integers would have gaps.
    return (first << low_bits) | (bits & ((1 << low_bits) - 1))


def bits_of_mixture(weight: int, total: int, bits: int) -> int | None:
    """Return None with probability `weight / total`, otherwise new uniform random bits."""
    limit = (weight << DRAW_BITS) // total
    return None if bits < limit else ((bits - limit) << DRAW_BITS) // ((1 << DRAW_BITS) - limit)
