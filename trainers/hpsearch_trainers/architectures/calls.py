"""A network as an expression: which functions make it, called with what. It is evaluated, or written as source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from hpsearch_trainers.architectures.shapes import Shape

__all__ = ["Call", "Planned", "evaluate", "module"]


@dataclass(frozen=True)
class Call:
    """A function that gives a module, and what it is called with; calls may stand inside of lists and mappings."""

    function: Callable[..., nn.Module]
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Planned:
    """What makes a module, and the shape of what the module gives."""

    call: Call
    shape: Shape


def evaluate(term: Any, made: dict[int, Any] | None = None) -> Any:
    """Give what a term stands for: each call anew, in the order in which they are written.

    Args:
        term: A call, or lists and mappings with calls.
        made: Is given what each call made, by the call's `id`.
    """
    if isinstance(term, Call):
        arguments = [evaluate(one, made) for one in term.arguments]
        result = term.function(*arguments, **{name: evaluate(one, made) for name, one in term.keywords.items()})
        if made is not None:
            made[id(term)] = result
        return result
    if isinstance(term, Mapping):
        return {key: evaluate(one, made) for key, one in term.items()}
    if isinstance(term, list | tuple):
        return type(term)(evaluate(one, made) for one in term)
    return term


def module(call: Call) -> nn.Module:
    """Make the module."""
    made: nn.Module = evaluate(call)
    return made
