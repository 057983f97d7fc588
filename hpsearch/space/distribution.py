"""What every distribution of a parameter can do."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from dataclasses import fields
from typing import ClassVar

from hpsearch.checks import plain
from hpsearch.seeds import DRAW_BITS
from hpsearch.trial import Value

__all__ = ["GRID_LIMIT", "Distribution", "own_copy", "share_of"]

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

    @abstractmethod
    def draw(self, bits: int) -> Value:
        """Give the plain Python value that these random bits stand for.

        Args:
            bits: 0 <= bits < 2**`DRAW_BITS`, each equally likely.
        """

    @abstractmethod
    def grid(self) -> list[Value]:
        """Give the values of a grid, in order and each once.

        Raises:
            InvalidKey: The range is continuous, or too long, and names no `points`.
        """

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
