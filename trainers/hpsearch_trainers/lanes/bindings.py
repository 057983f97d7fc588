"""Quicker ways to torch's operators: a function of torch reads Python's arguments in a third of an operator's time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["quickest"]

_PLACES = (torch._C._VariableFunctions, torch._C._nn, torch._C.TensorBase)
_MOST = 4096

_found: dict[Hashable, Callable[..., Any]] = {}
"""By operator and kinds of arguments: to look costs as much as ten calls."""


def quickest(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Callable[..., Any]:
    """Return what calls an operator soonest.

    Functions of one name choose among an operator's overloads by what they are given. So what the one that is given
    calls with these arguments is looked at: it must be this very operator, with the very same arguments.

    Args:
        func: An overload of an operator.
        args: That it was called with.
        kwargs: Likewise.
        result: What it gave: nothing is computed anew.
    """
    how = func, _kind(args), _kind(kwargs)
    if (known := _found.get(how)) is None:
        if len(_found) >= _MOST:
            _found.clear()
        known = _found[how] = _looked_for(func, args, kwargs, result)
    return known


def _kind(value: Any) -> Hashable:
    """Return what a choice among overloads may go by."""
    if isinstance(value, Tensor):
        return type(value), value.dim(), value.dtype, value.device, value.layout
    if isinstance(value, list | tuple):
        return type(value), *map(_kind, value)
    if isinstance(value, dict):
        return tuple((name, _kind(one)) for name, one in value.items())
    if isinstance(value, bool | int | str):
        return type(value), value
    kind: type = type(value)
    return kind


def _looked_for(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Callable[..., Any]:
    name = func._schema.name.partition("::")[2]
    for place in _PLACES:
        function: Callable[..., Any] | None = getattr(place, name, None)
        if function is not None and _calls(function, func, args, kwargs, result):
            return function
    operator: Callable[..., Any] = func._op
    return operator


def _calls(function: Callable[..., Any], func: Any, args: Any, kwargs: Any, result: Any) -> bool:
    seen = _Seen(result)
    try:
        with torch.no_grad(), seen:
            function(*args, **kwargs)
    except (TypeError, RuntimeError):  # it takes other arguments
        return False
    return len(seen.calls) == 1 and seen.calls[0][0] is func and _same(seen.calls[0][1:], (tuple(args), dict(kwargs)))


class _Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down what is called, and gives what it gave before."""

    def __init__(self, result: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, Any, Any]] = []
        self._result = result

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append((func, tuple(args), kwargs or {}))
        return self._result


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return one is other
    if isinstance(one, list | tuple):
        return isinstance(other, list | tuple) and len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return (
            isinstance(other, dict) and one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
        )
    return type(one) is type(other) and bool(one == other)
