"""Values that follow from others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import ClassVar

from hpsearch.config.checks import InvalidKey, plain
from hpsearch.config.import_paths import import_object, is_import_path
from hpsearch.errors import SweepError, exception_line
from hpsearch.space.distribution import Distribution
from hpsearch.space.expressions import Expression
from hpsearch.trial import Value

__all__ = ["Derived", "Refused"]

_REMEMBERED = 4096
"""Calls whose answers are kept: a point is gone through several times."""


class Refused(Exception):
    """A function says by a ValueError that a point is none that can be used."""


@dataclass(frozen=True)
class Derived(Distribution):
    """A value that follows from parameters that stand above it: of an expression, such as `"width * depth"`.

    Or of a function, by its import path `package.module:function`: it is called with all that stands above, nested as a
    trainable sees it, and gives a number, text, or another plain value, always the same for the same. A ValueError
    refuses the point as a broken constraint does.

    It is part of a point as if it had been drawn, and absent where the expression reads a parameter that is absent.
    """

    kind: ClassVar[str] = "derived"
    searched: ClassVar[bool] = False

    expression: str

    def _check(self) -> None:
        if self.function is not None:
            return
        try:
            object.__setattr__(self, "expression", self.parsed.text)
        except InvalidKey as error:
            raise error.under(("expression",)) from None

    @cached_property
    def function(self) -> str | None:
        """The import path of the function; None where it is an expression."""
        given = self.expression
        return given if isinstance(given, str) and is_import_path(given.strip()) else None

    @cached_property
    def parsed(self) -> Expression:
        """The expression, parsed."""
        return Expression(self.expression)

    def computed(self, params: Mapping[str, Value]) -> Value:
        """Ask the function.

        Args:
            params: What stands above it, nested as a trainable sees it.

        Raises:
            Refused: The function doesn't take the point.
            InvalidKey: There is no such function, it raised, or it gave what is no plain value.
        """
        assert self.function is not None
        taken, value = _answer(self.function.strip(), json.dumps(params))
        if not taken:
            raise Refused(value)
        return plain(value, ())

    def draw(self, bits: int) -> Value:
        """Refuse: it isn't drawn."""
        raise TypeError("a derived value isn't drawn")

    def grid(self) -> list[Value]:
        """Refuse: it follows from the others of a grid."""
        raise TypeError("a derived value has no grid")

    def accept(self, value: object) -> Value:
        """Take any plain value; the space compares it with its own."""
        return plain(value, ())


@lru_cache(maxsize=_REMEMBERED)
def _answer(path: str, params: str) -> tuple[bool, Value]:
    """Give whether a function takes a point, and its value, or why it doesn't.

    Raises:
        InvalidKey: It can't be had, or raised.
    """
    try:
        function = import_object(path, "derived", SweepError, [str(Path.cwd())])
    except SweepError as error:
        raise InvalidKey((), str(error)) from None
    if not callable(function):
        raise InvalidKey((), f"must be a function, but {path} is {type(function).__name__}")
    try:
        return True, plain(function(json.loads(params)), ())
    except InvalidKey as error:
        raise InvalidKey((), f"must be what {path} gives, a plain value, but that {error.problem}") from None
    except ValueError as error:
        return False, f"{path} refuses it: {error}"
    except Exception as error:
        raise InvalidKey((), f"must be what {path} gives, but that raised {exception_line(error)}") from error
