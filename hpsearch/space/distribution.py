"""What every distribution of a parameter can do, and what those of numbers share."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import ClassVar

from hpsearch.checks import InvalidKey, KeyPath, integer, number, plain
from hpsearch.seeds import DRAW_BITS
from hpsearch.space._decimals import Steps
from hpsearch.trial import Value

__all__ = ["GRID_LIMIT", "Distribution", "Numeric", "own_copy", "share_of"]

GRID_LIMIT = 1_000_000
"""Most values that one parameter may have in a grid."""


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
