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


def evaluate(term: Any) -> Any:
    """Give what a term stands for: each call anew, in the order in which they are written."""
    if isinstance(term, Call):
        arguments = [evaluate(one) for one in term.arguments]
        return term.function(*arguments, **{name: evaluate(one) for name, one in term.keywords.items()})
    if isinstance(term, Mapping):
        return {key: evaluate(one) for key, one in term.items()}
    if isinstance(term, list | tuple):
        return type(term)(evaluate(one) for one in term)
    return term


def module(call: Call) -> nn.Module:
    """Make the module."""
    made: nn.Module = evaluate(call)
    return made
