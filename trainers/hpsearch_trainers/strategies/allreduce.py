"""Synchronous data parallelism: gradients are allreduced during the backward pass, and all ranks take the same step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from hpsearch_comm import DataParallel, Group
from hpsearch_comm.data_parallel.broadcast import broadcast_tensors
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.buffers import differing
from hpsearch_trainers.optimizers import parameters_of
from hpsearch_trainers.strategies.strategy import Strategy, StrategyCapabilities, Trained

_ROUNDING = 1e-2
"""Maximum difference of a weight after an epoch that counts as rounding, relative to the largest weight."""


class Allreduce(Strategy):
    """Uses `hpsearch_comm.DataParallel`; the mean is weighted by each rank's rows."""

    name: ClassVar[str] = "allreduce"
    capabilities: ClassVar[StrategyCapabilities] = StrategyCapabilities(same_states=True, own_loop=True)
    group: Group

    def prepare(self, trained: Trained) -> None:
        """Install hooks that average the model's gradients, and broadcast rank 0's weights and buffers."""
        self.__dict__.pop("_averaging", None)  # removes the old hooks before new ones are installed
        self._needed = _gradients_needed(trained)
        self._averaging = DataParallel(trained.model, self.group, weighted=True)

    def is_bound(self, trained: Trained) -> bool:
        """Return whether the bound objects are unchanged, and need a gradient as before."""
        return super().is_bound(trained) and self._needed == _gradients_needed(trained)

    def start_step(self, rows: int) -> None:
        """Start a step with this number of rows on this rank."""
        super().start_step(rows)
        self._averaging.set_weight(rows)

    def backward(self, inputs: Any, loss_of: Callable[[Any], Tensor], loss_weight: float, *, last: bool) -> Tensor:
        """Run forward and backward; average gradients in the last pass of a step."""
        with contextlib.nullcontext() if last else self._averaging.no_sync():
            return super().backward(inputs, loss_of, loss_weight, last=last)

    def step(self) -> None:
        """Step the optimizer with the mean gradients."""
        self.local_step()

    def end_epoch(self) -> None:
        """Check that all ranks trained the same model up to rounding, and broadcast rank 0's weights.

        Raises:
            ConfigurationError: The ranks' models differ.
        """
        different = differing(parameters_of(self.trained.optimizer), self.group)
        before = [parameter.detach().clone() for parameter in different]
        broadcast_tensors(different, self.group)
        changed = [
            parameter
            for value, parameter in zip(before, different, strict=True)
            if not _nearly_equal(value, parameter.detach())
        ]
        if any(self.group.allgather_object(bool(changed))):
            raise ConfigurationError(
                "under parallel.strategy allreduce weights that are trained must be the same on all ranks, got others "
                "on each at an epoch's end: leave them to the optimizer; what a model sets by the rows that it sees "
                "must have requires_grad=False, or be a buffer, of which the mean is taken"
            )


def _nearly_equal(value: Tensor, reference: Tensor) -> bool:
    largest = float(reference.abs().nan_to_num(0.0, 0.0, 0.0).max()) if reference.numel() else 0.0
    return torch.allclose(value, reference, rtol=_ROUNDING, atol=_ROUNDING * largest, equal_nan=True)


def _gradients_needed(trained: Trained) -> list[bool]:
    return [parameter.requires_grad for parameter in trained.model.parameters()]
