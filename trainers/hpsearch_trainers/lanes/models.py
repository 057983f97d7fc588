"""What a model is made of, and its mode, as torch's own walks give them but in one pass.

Every epoch of every lane asks for these several times. torch's walks are generators within generators that make the
name of each place, and take longer than all else that is asked of a small model.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, TypeVar

from torch import Tensor, nn

__all__ = ["copied", "modules_of", "named_modules_of", "set_training", "tensors_of"]

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


def named_modules_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the path of each place in the model and the module there, which may be in several.

    Raises:
        RecursionError: One holds itself.
    """
    modules: list[tuple[str, nn.Module]] = []
    _visit("", model, modules)
    return modules


def _visit(path: str, module: nn.Module, modules: list[tuple[str, nn.Module]]) -> None:
    # Not within its caller: a function that names itself there is a circle, which would keep models until Python's
    # collector comes by.
    modules.append((path, module))
    for name, inner in module._modules.items():
        if inner is not None:
            _visit(f"{path}.{name}" if path else name, inner, modules)


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


def set_training(model: nn.Module, training: bool) -> None:
    """Do what `model.train()` does, or `model.eval()`."""
    modules = modules_of(model)
    if any(map(_overrides_train, modules)):
        model.train() if training else model.eval()
        return
    for module in modules:
        vars(module)["training"] = training  # where setattr puts it, once it has looked whether it is a tensor


def _overrides_train(module: nn.Module) -> bool:
    cls, attributes = type(module), vars(module)
    changed = cls.train is not nn.Module.train or cls.eval is not nn.Module.eval
    return changed or cls.__setattr__ is not nn.Module.__setattr__ or "train" in attributes or "eval" in attributes


def _once(tensors: Iterable[Tensor | None]) -> list[Tensor]:
    return [*{id(tensor): tensor for tensor in tensors if tensor is not None}.values()]
