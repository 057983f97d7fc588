"""A network as an expression of calls, which is evaluated or written as source code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from hpsearch_trainers.architectures.shapes import Shape


@dataclass(frozen=True)
class Call:
    """A function that returns a module, and its arguments. Arguments may be calls, also within lists and mappings."""

    function: Callable[..., nn.Module]
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Planned:
    """A call that makes a module, and the shape of the module's output."""

    call: Call
    shape: Shape


def evaluate(term: Any, results: dict[int, Any] | None = None) -> Any:
    """Return the value of a term. Calls are made in the order in which they are written.

    Args:
        term: A call, or lists and mappings with calls.
        results: Receives the result of each call, by the call's `id`.
    """
    if isinstance(term, Call):
        arguments = [evaluate(item, results) for item in term.arguments]
        result = term.function(*arguments, **{name: evaluate(item, results) for name, item in term.keywords.items()})
        if results is not None:
            results[id(term)] = result
        return result
    if isinstance(term, Mapping):
        return {key: evaluate(item, results) for key, item in term.items()}
    if isinstance(term, list | tuple):
        return type(term)(evaluate(item, results) for item in term)
    return term


def module(call: Call) -> nn.Module:
    """Make the module."""
    result: nn.Module = evaluate(call)
    return result
