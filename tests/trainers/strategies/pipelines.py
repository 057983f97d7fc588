"""Trainings in a pipeline; called on the ranks of process_ranks."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
import torch._dynamo  # optimizers import it when the first is made: here before ranks are forked
import torch.distributed as dist
from torch import Tensor, nn

import hpsearch_comm.torch_backend  # noqa: F401 - registers the backend
from hpsearch_comm import Group
from hpsearch_trainers.shards import Shard
from hpsearch_trainers.strategies.stages import cut
from tests.trainers.strategies.split_trainings import trial
from tests.trainers.test_trainer import CLASSES, FEATURES, MODELS, Small, data


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


def as_torch_does(group: Group, schedule: str, store: str) -> tuple[list[float], list[float], bool]:
    """Train as `Small` does with torch.distributed.pipelining; return both losses, and whether weights are equal.

    Args:
        group: The ranks.
        schedule: `gpipe` or `1f1b`.
        store: A new file, in which the ranks of torch's process group meet.
    """
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe  # slow, and only used here

    rows, count, epochs = 200, 4, 2  # micro-batches of equal size, as torch needs them
    trainer: Any = Small(trial({"train": data(rows)}, group, "pipeline", schedule=schedule, micro_batches=count))
    losses = [trainer.step()["loss"] for _ in range(epochs)]

    dist.init_process_group("hpsearch", f"file://{store}", rank=group.rank, world_size=group.size)
    torch.manual_seed(3)
    stage = nn.Sequential(*cut(MODELS["mlp"](), None, group.size).layers[group.rank])
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.05, momentum=0.9)
    kind: Any = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[schedule]
    passes = kind(
        PipelineStage(stage, group.rank, group.size, torch.device("cpu")), count, loss_fn=nn.functional.cross_entropy
    )
    inputs, targets = data(rows)
    of_torch: list[float] = []
    for epoch in range(epochs):
        of_epoch: list[Tensor] = []
        for chosen in Shard(rows, 20, 7).epoch(epoch):
            of_step: list[Tensor] = []
            given = [inputs[chosen]] if group.rank == 0 else []
            passes.step(*given, target=targets[chosen], losses=of_step, return_outputs=False)
            optimizer.step()
            optimizer.zero_grad()
            of_epoch += of_step
        of_torch.append(float(torch.stack(of_epoch).mean().detach()) if of_epoch else 0.0)
    dist.destroy_process_group()
    own = cut(trainer.model, None, group.size).layers[group.rank]
    ours = [parameter for layer in own for parameter in layer.parameters()]
    return losses, of_torch, all(map(torch.equal, ours, stage.parameters()))
