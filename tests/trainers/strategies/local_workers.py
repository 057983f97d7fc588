"""Workers that step by themselves, as an oracle has them: copies of a model in one process."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_comm import Group
from hpsearch_trainers.shards import Shard
from tests.trainers.test_trainer import ROWS, FakeTrial, Small, data


class Copies:
    """Several copies of a model, each with an optimizer of its own.

    Args:
        model: The common start.
        width: How many.
        optimizer: Makes one of a model.
        batch: Rows of all in a step.
        rows: Of the data.
    """

    def __init__(self, model: nn.Module, width: int, optimizer: Any, batch: int = 20, rows: int = ROWS) -> None:
        self.models = [copy.deepcopy(model) for _ in range(width)]
        self.optimizers = [optimizer(one) for one in self.models]
        self.shards = [Shard(rows, batch, 7, rank, width) for rank in range(width)]
        self.inputs, self.targets = data(rows)

    def step(self, epoch: int, number: int) -> list[int]:
        """Let each take a step; return the rows of each."""
        rows = []
        for model, optimizer, shard in zip(self.models, self.optimizers, self.shards, strict=True):
            mine = list(shard.epoch(epoch))[number]
            rows.append(len(mine))
            if len(mine) > 0:
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(self.inputs[mine]), self.targets[mine])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        return rows

    def mean(self, of_each: list[list[Tensor]], weights: list[int]) -> list[Tensor]:
        """Return the weighted mean, in float64."""
        shares = torch.tensor(weights, dtype=torch.float64) / sum(weights)
        return [torch.stack([one.double() for one in values], -1) @ shares for values in zip(*of_each, strict=True)]

    def weights(self) -> list[list[Tensor]]:
        """Return the weights of each copy."""
        return [[parameter.detach() for parameter in model.parameters()] for model in self.models]

    def velocities(self) -> list[list[Tensor]]:
        """Return the velocities of each copy's SGD; zeros if it has none yet."""
        return [
            [
                optimizer.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))
                for parameter in model.parameters()
            ]
            for model, optimizer in zip(self.models, self.optimizers, strict=True)
        ]

    def set(self, of_each: list[list[Tensor]], value: list[Tensor]) -> None:
        """Make those of each copy the same."""
        for one in of_each:
            for tensor, new in zip(one, value, strict=True):
                tensor.copy_(new)


def states_after(
    group: Group,
    epochs: int,
    parallel: Mapping[str, Any],
    state: Any = None,
    trainer: type[Small] = Small,
    **params: Any,
) -> tuple[list[dict[str, float]], dict[str, Any]]:
    """Train on a rank; return each epoch's metrics, and the state after the last one."""
    made = trainer(FakeTrial(params, group, parallel=parallel))
    if state is not None:
        made.load_state_dict(copy.deepcopy(state))
    found = [made.step() for _ in range(epochs)]
    for metrics in found:
        del metrics["data_wait"]
    return found, copy.deepcopy(made.state_dict())


def tensors_of(value: Any) -> list[Tensor]:
    """Return the tensors in a nested state, in the order of its keys; numbers as tensors."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [one for key in sorted(value, key=str) for one in tensors_of(value[key])]
    if isinstance(value, list | tuple):
        return [one for item in value for one in tensors_of(item)]
    return [torch.tensor(value, dtype=torch.float64)] if isinstance(value, int | float) else []
