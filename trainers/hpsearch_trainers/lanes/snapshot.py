"""What trainers were before an epoch, to go back to where it fails on the way."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpsearch_trainers.lanes.held import held_by, refill
from hpsearch_trainers.lanes.models import modules_of, tensors_of
from hpsearch_trainers.lanes.shell import Shell
from hpsearch_trainers.rates import Rates
from hpsearch_trainers.trainer import Trainer

__all__ = ["RandomState", "Snapshot"]


class RandomState:
    """The state of the process's random generators."""

    def __init__(self) -> None:
        self._torch = torch.default_generator.get_state()
        self._numpy = np.random.get_state()
        self._python = random.getstate()
        self._devices = _of_devices()

    def is_now(self) -> bool:
        """Whether nothing has been drawn since."""
        name, words, *rest = np.random.get_state()
        before, words_before, *rest_before = self._numpy
        return (
            torch.equal(self._torch, torch.default_generator.get_state())
            and (name, *rest) == (before, *rest_before)
            and np.array_equal(words, words_before)
            and random.getstate() == self._python
            and all(map(torch.equal, self._devices, _of_devices()))
        )

    def restore(self) -> None:
        """Go back to it."""
        torch.default_generator.set_state(self._torch)
        np.random.set_state(self._numpy)
        random.setstate(self._python)
        if self._devices:
            torch.cuda.set_rng_state_all(self._devices)


def _of_devices() -> list[Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]


class Snapshot:
    """What trainers are made of and what their losses and metrics keep, and the process's random generators.

    Args:
        trainers: All lanes of a pack.
        shells: What their models' tensors are in, if they are lanes.
    """

    def __init__(self, trainers: Sequence[Trainer], shells: Sequence[Shell] = ()) -> None:
        self.random = RandomState()
        self._held = held_by(trainers)
        self._tensors = [shell.kept() for shell in shells] if shells else [_numbers_of(trainers)]
        self._trainers = [_Saved(trainer) for trainer in trainers]

    def restore(self) -> None:
        """Go back, once: what is kept of each trainer is as it was."""
        self._held.restore()
        with torch.no_grad():
            for saved in self._trainers:
                saved.restore()
            for kept in self._tensors:
                for tensor, value in kept:
                    tensor.copy_(value)
        self.random.restore()


def _models_of(trainer: Trainer) -> list[nn.Module]:
    return [one for one in (trainer.model, trainer._average) if one is not None]


def _numbers_of(trainers: Sequence[Trainer]) -> Iterator[tuple[Tensor, Tensor]]:
    """Copy what the tensors of the models hold; give, later, each tensor and what it held."""
    tensors = [tensor for trainer in trainers for model in _models_of(trainer) for tensor in tensors_of(model)]
    return zip(tensors, [tensor.detach().clone() for tensor in tensors], strict=True)


class _Saved:
    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._epoch = trainer.epoch
        self._model, self._optimizer, self._average = trainer.model, trainer.optimizer, trainer._average
        models = _models_of(trainer)
        self._modules = [_SavedModule(module) for model in models for module in modules_of(model)]
        self._tensors = [(one, one.requires_grad, one.grad) for model in models for one in tensors_of(model)]
        self._groups = [
            (group, {name: _copied(value) for name, value in group.items()}) for group in self._optimizer.param_groups
        ]
        states = self._optimizer.state.items()
        self._state = {key: {name: _copied(value) for name, value in of.items()} for key, of in states}
        self._averaged = None if self._average is None else self._average.n_averaged.clone()

    def restore(self) -> None:
        trainer, optimizer = self._trainer, self._optimizer
        trainer.epoch = self._epoch
        trainer.model, trainer.optimizer = self._model, optimizer
        for module in self._modules:
            module.restore()
        for tensor, required, gradient in self._tensors:
            tensor.requires_grad_(required)
            tensor.grad = gradient
            # A lane's had none: see `shape_key`.
            tensor._backward_hooks = tensor._post_accumulate_grad_hooks = None  # type: ignore[assignment]
        optimizer.param_groups[:] = [group for group, _ in self._groups]
        for group, saved in self._groups:
            refill(group, saved)
        optimizer.state.clear()
        optimizer.state.update(self._state)
        trainer._rates = Rates(optimizer)  # one that was within an epoch would put back what it found there
        if self._average is not None and self._averaged is not None:
            self._average.n_averaged.copy_(self._averaged)


_CONTAINERS = (dict, list, set)


class _SavedModule:
    """A module but for what its tensors hold."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._attributes = vars(module).copy()
        # Of most containers, there is nothing in them.
        self._contents = [
            (one, one.copy()) for one in self._attributes.values() if one and isinstance(one, _CONTAINERS)
        ]

    def restore(self) -> None:
        refill(vars(self._module), self._attributes)
        for container in self._attributes.values():
            if isinstance(container, _CONTAINERS):
                container.clear()
        for container, content in self._contents:
            refill(container, content)


def _copied(value: Any) -> Any:
    if type(value) in (float, bool, int, type(None)):
        return value
    return value.detach().clone() if isinstance(value, Tensor) else copy.copy(value)
