"""What a model is made of beside its tensors, so that those of two lanes can be compared."""

from __future__ import annotations

import contextlib
import enum
import functools
import types
from collections.abc import Hashable
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from hpsearch_trainers.lanes.dropout import DROPOUT_MODULES
from hpsearch_trainers.lanes.errors import NotFusible
from hpsearch_trainers.lanes.models import named_modules_of

__all__ = ["describe", "described_value", "is_per_lane"]

_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
"""What torch keeps of every module."""
_HOOKS = frozenset(name for name in _MODULE_ATTRIBUTES if name.endswith("_hooks"))
_PLAIN = frozenset((bool, int, str, type(None)))
"""Of what most is."""
_COMPARED_BY_VALUE = (
    *(str, bytes, type(None), bool, int, complex, torch.dtype, torch.device, torch.memory_format, torch.Size),
    *(type, enum.Enum, types.BuiltinFunctionType, types.MethodDescriptorType, range),
    *(type(Ellipsis), slice),
)
"""Values that are compared as they are; classes are equal where they are one and the same."""


def is_per_lane(module: nn.Module, name: str) -> bool:
    """Whether an attribute may differ from lane to lane."""
    return name == "p" and type(module) in DROPOUT_MODULES


def describe(model: nn.Module) -> Hashable:
    """Describe classes and attributes of a model's modules, and which of them and of their tensors are the same one.

    Two models that are described alike compute the same from equal tensors.

    Raises:
        NotFusible: A module has hooks, or an attribute that can't be compared.
    """
    try:
        return tuple(_module(path, module) for path, module in named_modules_of(model))
    except RecursionError:
        raise NotFusible("its model has an attribute that holds itself, which can't be compared") from None


def described_value(value: Any, location: str) -> Hashable:
    """Describe a plain value, so that 1, 1.0 and True differ.

    Args:
        value: A number, text, function, class, or containers of such.
        location: Its place, for the reason.

    Raises:
        NotFusible: It is something else.
    """
    if type(value) in _PLAIN:
        return (type(value), value)
    if isinstance(value, float):
        return ("float", value.hex())
    if isinstance(value, _COMPARED_BY_VALUE):
        return (type(value), str(value) if isinstance(value, slice) else value)
    if type(value) in (list, tuple):
        return (type(value), tuple(described_value(item, location) for item in value))
    if type(value) in (set, frozenset):
        return (type(value), frozenset(described_value(item, location) for item in value))
    if type(value) is dict:
        items = value.items()
        return (dict, tuple((described_value(key, location), described_value(item, location)) for key, item in items))
    if isinstance(value, types.FunctionType):
        cells = tuple(described_value(item, location) for item in _contents(value))
        return (value.__code__, id(value.__globals__), described_value(value.__defaults__, location), cells)
    if type(value) is functools.partial:
        parts = (value.func, value.args, value.keywords)
        return (functools.partial, *(described_value(item, location) for item in parts))
    raise NotFusible(f"{location} is a {type(value).__name__}, which can't be compared from lane to lane")


def _contents(function: types.FunctionType) -> list[Any]:
    """Return what a function has of the one that it was made in."""
    contents = []
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # nothing yet
            contents.append(cell.cell_contents)
    return contents


def _module(path: str, module: nn.Module) -> Hashable:
    members = vars(module)
    location = f"its model{'.' if path else ''}{path}"
    if parametrize.is_parametrized(module):
        raise NotFusible(f"{location} is parametrized")
    if any(map(members.get, _HOOKS)):
        raise NotFusible(f"{location} has hooks")
    attributes = tuple(
        (name, None if is_per_lane(module, name) else described_value(value, f"{location}.{name}"))
        for name, value in members.items()
        if name not in _MODULE_ATTRIBUTES
    )
    return (path, type(module), type(module).forward, attributes)
