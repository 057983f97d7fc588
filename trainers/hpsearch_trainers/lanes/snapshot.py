"""Snapshots of trainers before an epoch, from which they are restored if the epoch fails."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpsearch_trainers.lanes.models import modules_of, tensors_of
from hpsearch_trainers.lanes.shell import Shell
from hpsearch_trainers.trainer import Trainer


class RandomState:
    """The state of the process's random generators."""

    def __init__(self) -> None:
        self._torch = torch.default_generator.get_state()
        self._numpy = np.random.get_state()
        self._python = random.getstate()
        self._devices = _of_devices()

    def is_now(self) -> bool:
        """Return whether no random number has been drawn since."""
        name, keys, *position = np.random.get_state()
        name_before, keys_before, *position_before = self._numpy
        return (
            torch.equal(self._torch, torch.default_generator.get_state())
            and (name, *position) == (name_before, *position_before)
            and np.array_equal(keys, keys_before)
            and random.getstate() == self._python
            and all(map(torch.equal, self._devices, _of_devices()))
        )

    def restore(self) -> None:
        """Restore the generators to this state."""
        torch.default_generator.set_state(self._torch)
        np.random.set_state(self._numpy)
        random.setstate(self._python)
        if self._devices:
            torch.cuda.set_rng_state_all(self._devices)


def _of_devices() -> list[Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]


class Snapshot:
    """The modules, tensors and attributes of trainers, and the state of the process's random generators.

    A loss that is a module is included. Other state that functions keep between calls isn't.

    Args:
        trainers: All lanes of a pack.
        shells: The shells that hold their models' tensors, if they are lanes.
    """

    def __init__(self, trainers: Sequence[Trainer], shells: Sequence[Shell] = ()) -> None:
        self.random = RandomState()
        models = [] if shells else [model for trainer in trainers for model in _models_of(trainer)]
        losses = [trainer.parts.loss for trainer in trainers if isinstance(trainer.parts.loss, nn.Module)]
        tensors = [tensor for model in (*models, *losses) for tensor in tensors_of(model)]
        tensors += [trainer._average.n_averaged for trainer in trainers if trainer._average is not None]
        self._tensors = [*(shell.copies() for shell in shells), _copies_of(tensors)]
        self._trainers = [_SavedTrainer(trainer) for trainer in trainers]

    def restore(self) -> None:
        """Restore the trainers and the generators. Call it only once."""
        with torch.no_grad():
            for saved in self._trainers:
                saved.restore()
            for copies in self._tensors:
                for tensor, memory, value in copies:
                    if tensor.data_ptr() != memory.data_ptr():
                        tensor.data = memory
                    tensor.copy_(value)
        self.random.restore()


def _models_of(trainer: Trainer) -> list[nn.Module]:
    return [model for model in (trainer.model, trainer._average) if model is not None]


class _SavedTrainer:
    def __init__(self, trainer: Trainer) -> None:
        self._attributes = _SavedAttributes(trainer), _SavedAttributes(trainer.optimizer)
        self._rates, self._rates_were = trainer._rates, vars(trainer._rates).copy()
        loss = trainer.parts.loss
        models = [*_models_of(trainer), *([loss] if isinstance(loss, nn.Module) else [])]
        self._modules = [_SavedAttributes(module) for model in models for module in modules_of(model)]
        self._tensors = [
            (tensor, tensor.requires_grad, tensor.grad) for model in models for tensor in tensors_of(model)
        ]
        self._optimizer = trainer.optimizer
        self._groups = [
            (group, {name: _copied(value) for name, value in group.items()}) for group in self._optimizer.param_groups
        ]
        states = self._optimizer.state.items()
        self._state = {key: {name: _copied(value) for name, value in state.items()} for key, state in states}

    def restore(self) -> None:
        optimizer = self._optimizer
        for attributes in self._attributes:
            attributes.restore()
        vars(self._rates).update(self._rates_were)
        for module in self._modules:
            module.restore()
        for tensor, required, gradient in self._tensors:
            tensor.requires_grad_(required)
            tensor.grad = gradient
            # A lane has no hooks: see `shape_key`.
            tensor._backward_hooks = tensor._post_accumulate_grad_hooks = None  # type: ignore[assignment]
        optimizer.param_groups[:] = [group for group, _ in self._groups]
        for group, saved in self._groups:
            _refill(group, saved)
        optimizer.state.clear()
        optimizer.state.update(self._state)


_CONTAINERS = (dict, list, set)
_MOST_COPIED = 2**16
"""Size in numbers from which a tensor counts as data, which isn't changed and so isn't copied."""


class _SavedAttributes:
    """The attributes of a trainer, a module or an optimizer, without the values of a module's tensors."""

    def __init__(self, owner: Trainer | nn.Module | torch.optim.Optimizer) -> None:
        self._owner = owner
        self._attributes = vars(owner).copy()
        # Most containers of a module are empty.
        self._contents = [
            (value, value.copy()) for value in self._attributes.values() if value and isinstance(value, _CONTAINERS)
        ]
        tensors = [
            value for value in self._attributes.values() if isinstance(value, Tensor) and value.numel() < _MOST_COPIED
        ]
        self._tensors = [(value, value.detach().clone()) for value in tensors]
        generators = [value for value in self._attributes.values() if isinstance(value, torch.Generator)]
        self._generators = [(value, value.get_state()) for value in generators]

    def restore(self) -> None:
        _refill(vars(self._owner), self._attributes)
        for container in self._attributes.values():
            if isinstance(container, _CONTAINERS):
                container.clear()
        for container, content in self._contents:
            _refill(container, content)
        for tensor, value in self._tensors:
            tensor.copy_(value)
        for generator, state in self._generators:
            generator.set_state(state)


def _copies_of(tensors: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Copy the content of tensors; yield each tensor, its memory and its old content."""
    copies = [(tensor, tensor.data, tensor.detach().clone()) for tensor in tensors]
    return iter(copies)


def _refill(container: Any, content: Any) -> None:
    """Restore the content of a list, dict or set."""
    container.clear()
    container.extend(content) if isinstance(container, list) else container.update(content)


def _copied(value: Any) -> Any:
    if type(value) in (float, bool, int, type(None)):
        return value
    return value.detach().clone() if isinstance(value, Tensor) else copy.copy(value)
