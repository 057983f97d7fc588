"""The character transformer on several ranks and by torch's own FSDP2; called on ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch._dynamo  # which optimizers import when the first is made: here it is there before ranks are forked
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from hpsearch_comm import Group
from hpsearch_trainers.char_lm import CharLM
from hpsearch_trainers.shards import Shard
from tests.trainers.test_trainer import FakeTrial

BATCH, STEPS = 8, 8


def params(path: str, **more: Any) -> dict[str, Any]:
    """Return the parameters of a small model."""
    return {
        "data": path,
        "length": 16,
        "layers": 3,
        "heads": 2,
        "features": 16,
        "lr": 0.01,
        "batch_size": BATCH,
    } | more


def trainer(path: str, group: Group | None = None, **parallel: Any) -> CharLM:
    """Return the model's trainer on a rank."""
    torch.manual_seed(5)
    return CharLM(FakeTrial(params(path), group, parallel=parallel))


def curve(group: Group | None, path: str, parallel: Mapping[str, Any], save: str) -> list[dict[str, float]]:
    """Train for two epochs; return the metrics, and leave the state in a file."""
    training = trainer(path, group, **parallel)
    metrics = [training.step() for _ in range(2)]
    if group is None or group.rank == 0:
        torch.save(training.state_dict(), save)
    return metrics


def plain_losses(path: str, rank: int = 0, size: int = 1, *, shard: bool = False) -> list[float]:
    """Train in a plain loop on this rank's share of some batches; return the mean loss of each over the share."""
    parts = trainer(path).parts
    model: Any = parts.model
    if shard:
        mesh = init_device_mesh("cpu", (size,))
        for layer in model.layers.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.01)
    inputs, targets = parts.train  # type: ignore[misc]
    losses = []
    for _, rows in zip(range(STEPS), Shard(len(inputs), BATCH, 7, rank, size).epoch(0), strict=False):
        optimizer.zero_grad()
        loss = parts.loss(model(inputs[rows]), targets[rows])
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def with_fsdp(path: str) -> list[float]:
    """Train with each layer sharded by itself; return the losses over all ranks."""
    losses = torch.tensor(plain_losses(path, dist.get_rank(), dist.get_world_size(), shard=True))
    dist.all_reduce(losses)
    found: list[float] = (losses / dist.get_world_size()).tolist()
    return found
