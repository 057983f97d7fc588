"""Trainers that put something where there is one for all of a process; `puts` says where."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_trainers import Parts, Trainer

IN_FORWARD = 1.0
IN_LOSS = 1.0
IN_METRIC = 1.0
ENTRIES = {"scale": 1.0}
HOLDER = types.SimpleNamespace(scale=1.0)
TENSOR = torch.ones(1)
ROWS: dict[str, Tensor] = {}
MEMO: Tensor | None = None
SCALES: dict[float, float] = {}

HARMFUL = {
    "forward": "IN_FORWARD",
    "loss": "IN_LOSS",
    "metric": "IN_METRIC",
    "entry": "ENTRIES['scale']",
    "attribute": "HOLDER.scale",
    "class": "Sharing.of_class",
    "tensor": "TENSOR",
    "and fails": "IN_LOSS",
}
"""What `puts` may be, to what a message calls it."""
HARMLESS = ("nothing", "the same again", "what is its own")


def begin_anew() -> None:
    """Let the module be as it was when it was imported."""
    global IN_FORWARD, IN_LOSS, IN_METRIC, MEMO, TENSOR
    IN_FORWARD, IN_LOSS, IN_METRIC, MEMO, TENSOR = 1.0, 1.0, 1.0, None, torch.ones(1)
    ENTRIES["scale"] = HOLDER.scale = Sharing.of_class = 1.0
    ROWS.clear()
    SCALES.clear()


class Scaled(nn.Module):
    """A layer times a global variable."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Any:
        return self.layer(x) * IN_FORWARD


class Sharing(Trainer):
    """Its loss is multiplied by `scale`, wherever that is."""

    of_class = 1.0

    def build(self, params: Mapping[str, Any]) -> Parts:
        """Put it there."""
        self.scale, self.key = 1.0, params["scale"]
        puts = params["puts"]
        _put(self, puts, params["scale"])
        if puts == "and fails" and params["scale"] > 2:
            raise ValueError("it has put something, and fails")
        rows = ROWS.setdefault("all", torch.randn(48, 6, generator=torch.Generator().manual_seed(7)))
        targets = (rows.sum(1) > 0).long()
        model = nn.Linear(6, 2) if puts == "nothing" else Scaled()
        return Parts(
            model,
            torch.optim.SGD(model.parameters(), 0.3, momentum=0.9),
            functional.cross_entropy if puts == "nothing" else self._loss,
            train=(rows[:36], targets[:36]),
            validation=(rows[36:], targets[36:]),
            metrics={} if puts == "nothing" else {"scaled": _scaled},
            batch_size=8,
        )

    def _loss(self, output: Tensor, targets: Tensor) -> Tensor:
        scale = IN_LOSS * ENTRIES["scale"] * HOLDER.scale * self.of_class * self.scale * SCALES.get(self.key, 1.0)
        loss: Tensor = functional.cross_entropy(output, targets) * scale * TENSOR.sum() * _memo()
        return loss


def _memo() -> Tensor:
    global MEMO
    if MEMO is None:
        MEMO = torch.ones(())
    return MEMO


def _put(trainer: Sharing, puts: str, scale: float) -> None:
    global HOLDER, IN_FORWARD, IN_LOSS, IN_METRIC, TENSOR
    if puts == "forward":
        IN_FORWARD = scale
    elif puts in ("loss", "and fails"):
        IN_LOSS = scale
    elif puts == "metric":
        IN_METRIC = scale
    elif puts == "entry":
        ENTRIES["scale"] = scale
    elif puts == "attribute":
        HOLDER.scale = scale
    elif puts == "class":
        type(trainer).of_class = scale
    elif puts == "tensor":
        TENSOR = torch.tensor([scale])
    elif puts == "the same again":
        IN_FORWARD, HOLDER, TENSOR = 1.0, types.SimpleNamespace(scale=1.0), torch.ones(1)
        ENTRIES.update(scale=1.0)
    elif puts == "what is its own":
        trainer.scale, SCALES[trainer.key] = scale, 2 * scale


def _scaled(output: Tensor, targets: Tensor) -> Tensor:
    return (output.argmax(1) == targets).float() * IN_METRIC
