"""Operations by name: built-in ones and users' own."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

Build = Callable[..., nn.Module]
"""`build(shape, **params)` returns a module; `shape` is that of its input, without the batch."""

OPERATIONS: dict[str, Build] = {}
"""Builders by name."""

_Function = TypeVar("_Function", bound=Build)
_OF_A_CELL = re.compile(r"\d+(-\d+)?")
_STRUCTURES = ("cells",)


def operation(*names: str) -> Callable[[_Function], _Function]:
    """Register a function as an operation, under its own name or others.

    The function is called with the shape of the input, (channels, height, width), (tokens, features) or (features,),
    and with the architecture's parameters by name. It returns a new module, and raises ValueError for input that it
    doesn't support; the error then names the location in the architecture. A parameter annotated `nn.Module` is an
    architecture itself, and the function gets the module, built for the same shape. An operation with a parameter
    `stride` may be at the inputs of a reduction cell.

    Args:
        names: Names in architectures; by default the function's own name.

    Raises:
        ValueError: The name is another operation's, or can't be distinguished from a node or an edge of a cell.
    """

    def register(function: _Function) -> _Function:
        for name in names or (function.__name__,):
            if _OF_A_CELL.fullmatch(name) or name in _STRUCTURES:
                raise ValueError(f"an operation's name must not be that of a node, an edge or cells, got {name!r}")
            registered = OPERATIONS.get(name)
            if registered is not None and _qualified_name(registered) != _qualified_name(function):
                raise ValueError(
                    f"operation {name!r} is there already, {'.'.join(_qualified_name(registered))}: take another name"
                )
        _check_signature(function)
        OPERATIONS.update(dict.fromkeys(names or (function.__name__,), function))
        return function

    return register


def _qualified_name(function: Any) -> tuple[str, str]:
    """Return module and name of a function. They are equal for a function that a notebook's cell defines again."""
    return getattr(function, "__module__", ""), getattr(function, "__qualname__", repr(function))


def _check_signature(function: Build) -> None:
    parameters = list(inspect.signature(function).parameters.values())
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    first, remaining = parameters[:1], parameters[1:]
    if not first or first[0].kind not in positional or any(parameter.kind not in by_name for parameter in remaining):
        raise ValueError(
            f"{'.'.join(_qualified_name(function))} must take a shape, and then parameters by name, got "
            f"{inspect.signature(function)}"
        )
