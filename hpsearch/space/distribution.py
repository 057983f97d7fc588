"""What every distribution of a parameter can do, and what those of numbers share."""

from __future__ import annotations

import copy
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import ClassVar

from hpsearch.config.checks import InvalidKey, KeyPath, integer, number, plain
from hpsearch.seeds import DRAW_BITS
from hpsearch.space._decimals import Steps
from hpsearch.space._near import bits_near
from hpsearch.trial import Value

__all__ = ["GRID_LIMIT", "Distribution", "Numeric", "own_copy", "share_of"]

GRID_LIMIT = 1_000_000
"""Most values that one parameter may have in a grid."""

MOVE = 0.1
"""Standard deviation of a near mutation, as a share of the draws."""


def own_copy(value: Value) -> Value:
    """Copy a container, so that a trainable that changes its params changes nobody else's."""
    return copy.deepcopy(value) if isinstance(value, list | dict) else value


def share_of(bits: int, precision: int = 53) -> float:
    """Give the first bits of a draw as a number in [0, 1), by default as many as a float holds."""
    return math.ldexp(bits >> (DRAW_BITS - precision), -precision)


class Distribution(ABC):
    """Where one parameter's values come from. Frozen, and checked when it is built."""

    kind: ClassVar[str]
    """Name in JSON."""
    prior: Value = None
    """Where a good value is believed to be; None: nobody says."""
    searched: ClassVar[bool] = True
    """Its value is chosen; False: it is given, or follows from others."""

    def __post_init__(self) -> None:
        try:
            self._check()
        except InvalidKey as error:
            subject = type(self).__name__
            raise InvalidKey(error.key, error.problem, error.advice, subject=subject) from None

    @abstractmethod
    def _check(self) -> None:
        """Check the arguments, and keep them as plain values.

        Raises:
            InvalidKey: One of them is wrong.
        """

    def _take(self, name: str, read: Callable[[object, KeyPath], Value]) -> None:
        """Keep an argument as the plain value that `read` makes of it."""
        object.__setattr__(self, name, read(getattr(self, name), (name,)))

    def _take_prior(self) -> None:
        """Keep a prior as the value that would have been drawn."""
        if self.prior is None:
            return
        try:
            object.__setattr__(self, "prior", self.accept(self.prior))
        except InvalidKey as error:
            raise error.under(("prior",)) from None

    @abstractmethod
    def draw(self, bits: int) -> Value:
        """Give the plain Python value that these random bits stand for.

        Args:
            bits: 0 <= bits < 2**`DRAW_BITS`, each equally likely.
        """

    def near(self, bits: int) -> Value:
        """Give a value near the prior, as `draw` gives any; without a prior that one."""
        return self.draw(bits)

    @abstractmethod
    def grid(self) -> list[Value]:
        """Give the values of a grid, in order and each once.

        Raises:
            InvalidKey: The range is continuous, or too long, and names no `points`.
        """

    def every_value(self) -> Sequence[Value] | None:
        """Give all values that may be drawn, each once; None where they are too many to be listed."""
        return None

    @abstractmethod
    def accept(self, value: object) -> Value:
        """Give a value as this distribution would have drawn it (`1` becomes `1.0` in a float range).

        Raises:
            InvalidKey: The value can't be drawn here.
        """

    def mutable(self, value: Value) -> bool:
        """Say whether another value than this one may be drawn."""
        return False

    def mutate(self, value: Value, bits: int) -> Value:
        """Give another value than this one, as `Space.mutate` takes it.

        Args:
            value: As `accept` gives it.
            bits: As `draw` takes them.

        Raises:
            ValueError: There is no other; see `mutable`.
        """
        raise ValueError(f"{type(self).__name__} must have another value than {value!r} to be mutated")

    def neighbours(self, value: Value) -> list[Value]:
        """Give the values that are one step from this one: each other choice, the numbers beside it.

        Args:
            value: As `accept` gives it.
        """
        return []

    def to_json(self) -> dict[str, Value]:
        """Give the distribution as JSON; `distribution_from_json` reads it back."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {"distribution": self.kind} | {
            name: plain(value) for name, value in given.items() if value is not None or name == "value"
        }


class Numeric(Distribution):
    """Of numbers. A `step` means what W&B's `q` means: values are its multiples, integers where it is one."""

    step: float | None
    points: int | None
    whole: ClassVar[bool] = False
    """Whether it is one of integers."""
    fewest_points: ClassVar[int]
    """How many a grid has at least."""

    @property
    @abstractmethod
    def steps(self) -> Steps | None:
        """The multiples that values are; None where they may lie between them."""

    def _check(self) -> None:
        if self.step is not None:
            self._take("step", integer if self.whole or isinstance(self.step, int) else number)
            if self.step <= 0:
                raise InvalidKey(("step",), f"must be greater than 0, got {self.step}")
            if self.step < sys.float_info.min:  # of its multiples none could be told from what lies beside it
                least = f"must be at least {sys.float_info.min}, since smaller floats have fewer digits"
                raise InvalidKey(("step",), f"{least}, got {self.step}")
        if self.points is not None:
            self._take("points", integer)
            if not self.fewest_points <= self.points <= GRID_LIMIT:
                problem = f"must be between {self.fewest_points} and {GRID_LIMIT}, got {self.points}"
                raise InvalidKey(("points",), problem)

    @abstractmethod
    def place(self, value: float) -> float:
        """Give where a value lies on the distribution's own scale: 0 to 1 where it may be drawn.

        Raises:
            ValueError: The scale has no place for it.
        """

    @property
    @abstractmethod
    def ends(self) -> tuple[int | float, int | float]:
        """The least and the greatest value that may be drawn."""

    def share(self, value: float) -> float:
        """Give the share, in [0, 1], of the draws around which those near a value lie."""
        return min(max(self.place(value), 0.0), 1.0)

    def mutable(self, value: Value) -> bool:
        """Say whether another number than this one may be drawn."""
        return not self.ends[0] == value == self.ends[1]

    def mutate(self, value: Value, bits: int) -> Value:
        """Give another number: three times in four from near this one, else from anywhere.

        Near is a normal around it on the unit scale of the draws, so that a logarithmic range moves by factors and a
        normal by quantiles. Where the draw gives the number itself, as it often does of few multiples, it becomes the
        one beside it, on the side where the draw fell.

        Real et al. mutate choices alone. For numbers Syne Tune's evolution draws anew, which forgets what made the
        parent good; the polynomial mutation of Deb and Goyal (GeneAS, 1996) with its usual index of 20 moves by a
        twentieth of the range, and practically never by a half of it, so that a population can't leave a valley. This
        is both, in the shares in which Ray Tune's population-based training perturbs and resamples. docs/benchmarks.md
        has what other shares found.
        """
        if not self.mutable(value):
            return super().mutate(value, bits)
        center = self.share(value)
        taken = bits if bits % 4 == 0 else bits_near(center, bits, MOVE)
        drawn = self.draw(taken)
        return drawn if drawn != value else self._beside(value, share_of(taken) >= center)

    def neighbours(self, value: Value) -> list[Value]:
        """Give the multiples beside a number, or the numbers that lie `MOVE` of the draws below and above it."""
        least, greatest = self.ends
        if self.steps is not None:
            return [self._beside(value, above) for above, end in ((False, least), (True, greatest)) if value != end]
        shares = [self.share(value) + move for move in (-MOVE, MOVE)]
        drawn = [self.draw(min(int(share * 2**DRAW_BITS), 2**DRAW_BITS - 1)) for share in shares if 0 <= share <= 1]
        return [near for near in drawn if near != value]

    def _beside(self, value: float, above: bool) -> int | float:
        """Give the number next to one between the ends, on this side where there is one."""
        least, greatest = self.ends
        above = value < greatest and (above or value <= least)
        if self.steps is None:
            return math.nextafter(value, math.inf if above else -math.inf)
        return self.steps.value(self.steps.multiple(value) + (1 if above else -1))

    def snap(self, value: float) -> int | float:
        """Give the multiple nearest to a value, or the value itself where there is no step."""
        return value if self.steps is None else self.steps.snap(value)

    def _accept_multiple(self, value: float) -> int | float:
        """Take a multiple of the step, give or take float dust."""
        if self.steps is None:
            return value
        snapped = self.steps.snap(value)
        if not math.isclose(snapped, value, rel_tol=1e-9, abs_tol=1e-9 * float(self.steps.size)):
            raise InvalidKey((), f"must be a multiple of {self.step}, got {value}")
        return snapped
