"""Trainings in a pipeline; called on the ranks of process_ranks."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
import torch._dynamo  # noqa: F401 - optimizers import it when the first is made: here before ranks are forked
from torch import Tensor, nn

from hpsearch_comm import Group
from tests.trainers.strategies.split_trainings import trial
from tests.trainers.test_trainer import CLASSES, FEATURES, MODELS, Small


def killed(group: Group, schedule: str, victim: int, where: str) -> str:
    """The victim kills itself in its third pass."""
    trainer: Any = Small(trial({}, group, "pipeline", schedule=schedule))
    left = [3]

    def count(*_: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    layer = trainer.model[group.rank]
    if group.rank == victim and where == "forward":
        layer.register_forward_hook(count)
    elif group.rank == victim and where == "backward":
        layer.register_full_backward_hook(count)
    trainer.step()
    if group.rank == victim and where == "validation":
        os.kill(os.getpid(), signal.SIGKILL)
    trainer.step()
    return "nobody died"


def fails(group: Group) -> str:
    """The loss, which the last stage alone computes, raises."""
    left = [5]

    def loss(output: Tensor, target: Tensor) -> Tensor:
        left[0] -= 1
        if left[0] == 0:
            raise ValueError("this loss has had enough")
        return nn.functional.cross_entropy(output, target)

    Small(trial({"loss": loss}, group, "pipeline")).step()
    return "nothing failed"


def _dropout() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 16),
        nn.Dropout(0.4),
        nn.Linear(16, 16),
        nn.Dropout(0.4),
        nn.Linear(16, 16),
        nn.LayerNorm(16),
        nn.Dropout(0.4),
        nn.Linear(16, CLASSES),
    )


def draws(group: Group) -> list[list[bool]]:
    """Return which elements a dropout drops in the first pass: the first dropout on rank 0, the last on other ranks."""
    MODELS["dropout"] = _dropout
    trainer: Any = Small(trial({"model": "dropout"}, group, "pipeline", micro_batches=1))
    left_out: list[list[bool]] = []
    trainer.model[1 if group.rank == 0 else 6].register_forward_hook(
        lambda _module, _inputs, output: left_out.extend((output == 0).tolist()) if not left_out else None
    )
    trainer.step()
    return left_out
