"""Derived parameters: values computed from other parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import ClassVar

from hpsearch.config.checks import InvalidKey, plain, under
from hpsearch.config.import_paths import import_object, is_import_path
from hpsearch.errors import SweepError, exception_line
from hpsearch.space.distribution import Distribution
from hpsearch.space.expressions import Expression
from hpsearch.trial import Value

_CACHE_SIZE = 4096
"""Number of cached calls. A configuration is computed several times."""


class RejectedConfiguration(Exception):
    """The function of a derived parameter raised a ValueError for a configuration."""


@dataclass(frozen=True)
class Derived(Distribution):
    """A value computed from the parameters that are declared above it, such as `"width * depth"`.

    It is an expression, or the import path of a function, `package.module:function`. The function is called with the
    parameters above it, nested as a trainable gets them. It must be deterministic and return a plain value, such as a
    number or a string. If it raises a ValueError, the configuration is rejected as if it broke a constraint.

    The value is part of the configuration. It is absent if the expression reads an inactive parameter.
    """

    kind: ClassVar[str] = "derived"
    searched: ClassVar[bool] = False

    expression: str

    def _check(self) -> None:
        if self.function is not None:
            return
        with under(("expression",)):
            object.__setattr__(self, "expression", self.parsed.text)

    @cached_property
    def function(self) -> str | None:
        """The import path of the function; None for an expression."""
        expression = self.expression
        return expression if isinstance(expression, str) and is_import_path(expression.strip()) else None

    @cached_property
    def parsed(self) -> Expression:
        """The expression, parsed."""
        return Expression(self.expression)

    def computed(self, params: Mapping[str, Value]) -> Value:
        """Return the value that the function computes.

        Args:
            params: The parameters above it, nested as a trainable gets them.

        Raises:
            RejectedConfiguration: The function raised a ValueError.
            InvalidKey: There is no such function, it raised another error, or it did not return a plain value.
        """
        assert self.function is not None
        is_valid, value = _call(self.function.strip(), json.dumps(params))
        if not is_valid:
            raise RejectedConfiguration(value)
        return plain(value, ())

    def draw(self, bits: int) -> Value:
        """Raise a TypeError: the value is computed, not sampled."""
        raise TypeError("a derived value isn't drawn")

    def grid(self) -> list[Value]:
        """Raise a TypeError: the value is computed from the others of a grid."""
        raise TypeError("a derived value has no grid")

    def accept(self, value: object) -> Value:
        """Return any plain value; the space compares it with the computed one."""
        return plain(value, ())


@lru_cache(maxsize=_CACHE_SIZE)
def _call(path: str, params: str) -> tuple[bool, Value]:
    """Return (True, value), or (False, message) if the function raised a ValueError.

    Raises:
        InvalidKey: The function cannot be imported, or raised another error.
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
