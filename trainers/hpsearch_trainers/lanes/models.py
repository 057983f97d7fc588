"""Fast traversal of a model's modules and tensors.

Every epoch of every lane traverses its model several times. torch's own traversals are nested generators that also
build names. For a small model, they would take longer than everything else.
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
    """Return the parameters followed by the buffers, each once, in torch's order."""
    modules = modules_of(model)
    parameters = _once(tensor for module in modules for tensor in module._parameters.values())
    return [*parameters, *_once(tensor for module in modules for tensor in module._buffers.values())]


def copied(value: _T, models: Iterable[nn.Module], memo: dict[int, Any] | None = None) -> _T:
    """Return a deep copy of a value that contains models.

    Most of the time for a small module would go into its dozen empty containers for hooks, so these are created
    directly.

    Args:
        value: The value.
        models: Models within the value.
        memo: Existing copies, by the ids of the originals.
    """
    memo = {} if memo is None else memo
    for module in (module for model in models for module in modules_of(model)):
        for container in vars(module).values():
            if type(container) in _CONTAINERS and not container:
                memo[id(container)] = type(container)()
    return copy.deepcopy(value, memo)


def _once(tensors: Iterable[Tensor | None]) -> list[Tensor]:
    return [*{id(tensor): tensor for tensor in tensors if tensor is not None}.values()]
