"""Trainings in a pipeline of parts that aren't the model's own; called on the ranks of process_ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo  # which optimizers import when the first is made: here before ranks are forked
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_comm import Group
from tests.trainers.strategies.split_trainings import trial
from tests.trainers.test_trainer import CLASSES, FEATURES, Small


class Model(nn.Module):
    """Normalizes, and leaves something out, within its forward."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(FEATURES, 16), nn.BatchNorm1d(16), nn.Linear(16, CLASSES)
        self.dropout = dropout

    def forward(self, inputs: Tensor) -> Any:
        """Return logits."""
        hidden = functional.dropout(self.norm(self.up(inputs)).tanh(), self.dropout, self.training)
        return self.down(hidden)


def _statistics_of_its_own(model: Model) -> nn.Module:
    norm = nn.BatchNorm1d(16)
    norm.weight, norm.bias = model.norm.weight, model.norm.bias
    return norm


def _statistics_of_the_model(model: Model) -> nn.Module:
    norm = _statistics_of_its_own(model)
    for name, buffer in model.norm.named_buffers():
        setattr(norm, name, buffer)
    return norm


PARTS: dict[str, Callable[[Model], list[nn.Module]]] = {
    "its own": lambda model: [model.up, model.norm, nn.Tanh(), model.down],
    "with dropout": lambda model: [model.up, model.norm, nn.Tanh(), nn.Dropout(model.dropout), model.down],
    "the same statistics": lambda model: [model.up, _statistics_of_the_model(model), nn.Tanh(), model.down],
    "statistics beside": lambda model: [model.up, _statistics_of_its_own(model), nn.Tanh(), model.down],
}


class Named(Small):
    """Its model names its parts."""

    def build(self, params: Any) -> Any:
        """See Trainer."""
        torch.manual_seed(3)
        model = Model(params["dropout"])
        made = super().build({"freeze_batch_norm": params["freezes"]})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        return dataclasses.replace(made, model=model, optimizer=optimizer, pipeline=PARTS[params["parts"]](model))


def trained(group: Group | None, parts: str, freezes: float | None = None, dropout: float = 0.0) -> list[float]:
    """Train for two epochs; return each one's loss and that of validation.

    Args:
        group: The ranks.
        parts: One of `PARTS`.
        freezes: See `Parts.freeze_batch_norm`.
        dropout: Of the model.
    """
    params = {"parts": parts, "freezes": freezes, "dropout": dropout}
    trainer = Named(trial(params, group, "pipeline", micro_batches=1))
    metrics = [trainer.step() for _ in range(2)]
    return [epoch[name] for epoch in metrics for name in ("loss", "validation_loss")]
