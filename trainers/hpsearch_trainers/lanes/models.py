"""What a model is made of, as torch's own walks give it but in one pass.

Every epoch of every lane asks for these several times. torch's walks are generators within generators that make the
name of each place, and take longer than all else that is asked of a small model.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, TypeVar

from torch import Tensor, nn

_T = TypeVar("_T")
_CONTAINERS = (OrderedDict, dict, set)


def modules_of(model: nn.Module) -> list[nn.Module]:
    """Return the modules, each once, in the order of `model.modules()`."""
    modules: dict[int, nn.Module] = {}
    pending: list[nn.Module] = [model]
    while pending:
        module = pending.pop()
        if id(module) not in modules:
            modules[id(module)] = module
            pending += [child for child in reversed([*module._modules.values()]) if child is not None]
    return [*modules.values()]


def tensors_of(model: nn.Module) -> list[Tensor]:
    """Return the parameters and after them the buffers, each once, in the order of torch's."""
    modules = modules_of(model)
    parameters = _once(tensor for module in modules for tensor in module._parameters.values())
    return [*parameters, *_once(tensor for module in modules for tensor in module._buffers.values())]


def copied(value: _T, models: Iterable[nn.Module], memo: dict[int, Any] | None = None) -> _T:
    """Return a deep copy of a value that has these models in it.

    Most that there is to copy of a small module are its dozen of empty containers, for hooks: they are made by hand.

    Args:
        value: What is copied.
        models: Of its parts.
        memo: Copies that there are already, by the ids of what they are of.
    """
    memo = {} if memo is None else memo
    for module in (module for model in models for module in modules_of(model)):
        for container in vars(module).values():
            if type(container) in _CONTAINERS and not container:
                memo[id(container)] = type(container)()
    return copy.deepcopy(value, memo)


def _once(tensors: Iterable[Tensor | None]) -> list[Tensor]:
    return [*{id(tensor): tensor for tensor in tensors if tensor is not None}.values()]
