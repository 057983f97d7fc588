"""What trainers were before an epoch, to go back to where it fails on the way."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpsearch_trainers.lanes.held import held_by
from hpsearch_trainers.lanes.shell import Shell
from hpsearch_trainers.trainer import Trainer

__all__ = ["RandomState", "Snapshot"]


class RandomState:
    """The state of the process's random generators."""

    def __init__(self) -> None:
        self._torch = torch.default_generator.get_state()
        self._numpy = np.random.get_state()
        self._python = random.getstate()

    def is_now(self) -> bool:
        """Whether nothing has been drawn since."""
        name, words, *rest = np.random.get_state()
        before, words_before, *rest_before = self._numpy
        return (
            torch.equal(self._torch, torch.default_generator.get_state())
            and (name, *rest) == (before, *rest_before)
            and np.array_equal(words, words_before)
            and random.getstate() == self._python
        )

    def restore(self) -> None:
        """Go back to it."""
        torch.default_generator.set_state(self._torch)
        np.random.set_state(self._numpy)
        random.setstate(self._python)


class Snapshot:
    """What trainers are made of and what their losses and metrics keep, and the process's random generators.

    Args:
        trainers: All lanes of a pack.
        shells: What their models' tensors are in.
    """

    def __init__(self, trainers: Sequence[Trainer], shells: Sequence[Shell]) -> None:
        self.random = RandomState()
        self._held = held_by(trainers)
        self._tensors = [shell.kept() for shell in shells]
        self._trainers = [_Saved(trainer) for trainer in trainers]

    def restore(self) -> None:
        """Go back, once: what is kept of each trainer is as it was."""
        self._held.restore()
        with torch.no_grad():
            for kept in self._tensors:
                for tensor, value in kept:
                    tensor.copy_(value)
                    tensor.grad = None
            for saved in self._trainers:
                saved.restore()
        self.random.restore()


class _Saved:
    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._epoch = trainer.epoch
        optimizer, average = trainer.optimizer, trainer._average
        self._groups = [
            {name: _copied(value) for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups
        ]
        self._state = {key: {name: _copied(value) for name, value in of.items()} for key, of in optimizer.state.items()}
        self._factor = trainer._rates._factor
        self._averaged = None if average is None else average.n_averaged.clone()

    def restore(self) -> None:
        trainer = self._trainer
        trainer.epoch = self._epoch
        for group, saved in zip(trainer.optimizer.param_groups, self._groups, strict=True):
            group.update(saved)
        trainer.optimizer.state.clear()
        trainer.optimizer.state.update(self._state)
        trainer._rates._factor = self._factor
        if trainer._average is not None and self._averaged is not None:
            trainer._average.n_averaged.copy_(self._averaged)


def _copied(value: Any) -> Any:
    if type(value) in (float, bool, int, type(None)):
        return value
    return value.detach().clone() if isinstance(value, Tensor) else copy.copy(value)
