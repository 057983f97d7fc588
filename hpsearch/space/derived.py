"""Values that follow from others."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from hpsearch.checks import InvalidKey, plain
from hpsearch.space.distribution import Distribution
from hpsearch.space.expressions import Expression
from hpsearch.trial import Value

__all__ = ["Derived"]


@dataclass(frozen=True)
class Derived(Distribution):
    """The value of an expression over parameters that stand above it, such as `"width * depth"`.

    It is part of a point as if it had been drawn, and absent where the expression reads a parameter that is absent.
    """

    kind: ClassVar[str] = "derived"
    searched: ClassVar[bool] = False

    expression: str

    def _check(self) -> None:
        try:
            object.__setattr__(self, "expression", self.parsed.text)
        except InvalidKey as error:
            raise error.under(("expression",)) from None

    @cached_property
    def parsed(self) -> Expression:
        """The expression, parsed."""
        return Expression(self.expression)

    def draw(self, bits: int) -> Value:
        """Refuse: it isn't drawn."""
        raise TypeError("a derived value isn't drawn")

    def grid(self) -> list[Value]:
        """Refuse: it follows from the others of a grid."""
        raise TypeError("a derived value has no grid")

    def accept(self, value: object) -> Value:
        """Take any plain value; the space compares it with its own."""
        return plain(value, ())
