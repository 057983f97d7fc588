"""What a user's functions and objects keep from call to call, to put it back after a try."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from hpsearch_trainers.lanes.models import tensors_of
from hpsearch_trainers.trainer import Trainer

__all__ = ["Held", "held_by", "refill"]

_PLAIN = frozenset((str, int, float, bool, types.NoneType))
"""Of what most is: it can't change."""
_LARGE = 2**16
"""Numbers from which on a tensor is taken for data, which nobody changes."""
_OF_ITS_OWN = ("params", "parts", "model", "optimizer", "device", "group", "epoch")


class Held:
    """Numbers, containers, small tensors and random generators in closures and attributes.

    What lies in global variables and on classes is left out: it belongs to whole processes.

    Args:
        holders: Functions, modules and other objects; of a trainer, the attributes that a user gave it.
        others: What is taken care of elsewhere, and left out wherever it is held.
    """

    def __init__(self, holders: Iterable[object], others: Iterable[object]) -> None:
        self._seen = {id(one) for one in others}
        self._restores: list[Callable[[], object]] = []
        self._kept: list[object] = []  # so that no other object gets an id that was seen
        for holder in holders:
            self._hold(holder)

    def restore(self) -> None:
        """Put all of it back."""
        for restore in self._restores:
            restore()

    def _hold(self, value: Any) -> None:
        if type(value) in _PLAIN or id(value) in self._seen:
            return
        if isinstance(value, str | int | float | type | types.ModuleType):
            return
        self._seen.add(id(value))
        self._kept.append(value)
        if isinstance(value, list | dict | set):
            self._restores.append(functools.partial(refill, value, value.copy()))
            self._hold_all(value.values() if isinstance(value, dict) else value)
        elif isinstance(value, tuple | frozenset):
            self._hold_all(value)
        elif isinstance(value, functools.partial):
            self._hold_all([value.func, *value.args, *value.keywords.values()])
        elif isinstance(value, types.MethodType):
            self._hold_all([value.__func__, value.__self__])
        elif isinstance(value, types.FunctionType):
            for cell in value.__closure__ or ():
                with contextlib.suppress(ValueError):  # nothing in it yet
                    self._restores.append(functools.partial(setattr, cell, "cell_contents", cell.cell_contents))
                    self._hold(cell.cell_contents)
        elif isinstance(value, Tensor):
            if value.numel() < _LARGE:
                self._restores.append(functools.partial(_set_tensor, value, value.detach().clone()))
        elif isinstance(value, torch.Generator):
            self._restores.append(functools.partial(value.set_state, value.get_state()))
        elif isinstance(value, Trainer):
            given = {name: one for name, one in vars(value).items() if name[0] != "_" and name not in _OF_ITS_OWN}
            self._restores.append(functools.partial(vars(value).update, given))
            self._hold_all(given.values())
        elif hasattr(value, "__dict__"):
            self._hold(vars(value))

    def _hold_all(self, values: Iterable[object]) -> None:
        for value in [*values]:
            self._hold(value)


def held_by(trainers: Iterable[Trainer]) -> Held:
    """Hold what trainers' losses, metrics, optimizers and own attributes keep; models and optimizer states aside."""
    holders: list[object] = []
    apart: list[object] = []
    for trainer in trainers:
        holders += [trainer.parts.loss, *trainer.parts.metrics.values(), trainer.optimizer, trainer]
        apart += [trainer.optimizer.state, trainer.optimizer.param_groups]
        for model in (trainer.model, trainer._average):
            if model is not None:
                apart += [model, *tensors_of(model)]
    return Held(holders, apart)


def _set_tensor(tensor: Tensor, value: Tensor) -> None:
    with torch.no_grad():
        tensor.copy_(value)


def refill(container: Any, content: Any) -> None:
    """Put a list's, dict's or set's content back into it."""
    container.clear()
    container.extend(content) if isinstance(container, list) else container.update(content)
