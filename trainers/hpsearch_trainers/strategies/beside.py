"""Modules of a pipeline that aren't the model's own: they follow it, and keep nothing that training changes."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.buffers import digest

__all__ = ["Beside"]


class Beside:
    """What the stages of a model have beside it.

    Args:
        layers: Of all stages.
        model: Theirs.
        freezes: See `Parts.freeze_batch_norm`.
    """

    def __init__(self, layers: Iterable[nn.Module], model: nn.Module, freezes: float | None) -> None:
        inside = set(model.modules())
        self._model, self._freezes = model, math.inf if freezes is None else freezes
        self._modules = [one for layer in layers for one in layer.modules() if one not in inside]

    def start_epoch(self, epoch: int) -> None:
        """Take note of what they keep, and of whether batch normalization is frozen in this epoch."""
        self._held = epoch >= self._freezes
        self._before = self._marks()

    def follow(self) -> None:
        """Train where the model does."""
        for module in self._modules:
            module.training = self._model.training and not (self._held and isinstance(module, _BatchNorm))

    def check(self) -> None:
        """See that they still keep what they did when the epoch began.

        Raises:
            ConfigurationError: They don't.
        """
        changed = sorted(self._marks() - self._before)
        if changed:
            raise ConfigurationError(
                "modules of Parts.pipeline that aren't the model's own must keep nothing that training changes, as it "
                f"would be neither saved nor validated with, got another {changed[0].rpartition(' ')[0]}: let them "
                "hold the model's own modules, such as its batch normalization"
            )

    def _marks(self) -> set[str]:
        inside = set(map(id, self._model.buffers()))
        return {
            f"{name} of {type(module).__name__} {number} {digest(buffer.to_dense())}"
            for number, module in enumerate(self._modules)
            for name, buffer in module.named_buffers(recurse=False)
            if id(buffer) not in inside
        }
