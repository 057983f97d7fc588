"""A training step: no averaging, ours, and torch's own ways over Gloo and over ours, in turn.

torch's are DistributedDataParallel and, where its version has it, `fully_shard` (FSDP2).

All live in the same processes. Three models: a wide one, whose few large gradients ask for bandwidth, a deep narrow
one, whose hundreds of small gradients ask for little cost per parameter, and a convnet, which mostly computes. What is
reported is the efficiency: the time of a step in which all ranks compute at once and average nothing, divided by the
time of a step with averaging. It charges averaging with nothing that the ranks' neighbourhood costs anyhow.

What else runs on a machine comes and goes within seconds, so turns are short and many: each is one repetition, and an
efficiency is taken from turns that lay side by side, of which each contender in its turn is the first.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hpsearch_comm.errors import CommError
from tests.benchmarks.collectives.block import Block, repeat
from tests.benchmarks.collectives.collective import in_turn
from tests.benchmarks.collectives.stage import Stage

NO_AVERAGING = "no averaging"
DDP_OVER_GLOO = "gloo, DistributedDataParallel"
DDP_OVER_OURS = "ours, DistributedDataParallel"
FSDP_OVER_GLOO = "gloo, fully_shard"
FSDP_OVER_OURS = "ours, fully_shard"

_BATCH = 64
_STEPS = 5
"""Steps per repetition: ranks meet before the first, and then run as they like, as in training."""
_TURNS = 5
"""Of each contender in a round: as many steps as one long turn would have, but neighbours are seconds closer."""
_SHARDED_BY_THEMSELVES = 100_000
"""Parameters from which on FSDP2 gathers a layer by itself; smaller ones are gathered together, once a pass."""


def wide() -> nn.Module:
    """Return three large layers: 15.7 million parameters, 63 MB."""
    return nn.Sequential(nn.Linear(1024, 3072), nn.ReLU(), nn.Linear(3072, 3072), nn.ReLU(), nn.Linear(3072, 1024))


def deep() -> nn.Module:
    """Return 200 small layers: 832,000 parameters in 400 tensors, 3.3 MB."""
    return nn.Sequential(*(layer for _ in range(200) for layer in (nn.Linear(64, 64), nn.ReLU())))


def convnet() -> nn.Module:
    """Return three convolutions for small images and a linear layer: 191,000 parameters, 0.8 MB."""
    convolutions = [
        layer
        for channels in ((3, 32), (32, 64), (64, 128))
        for layer in (nn.Conv2d(*channels, kernel_size=3, padding=1), nn.BatchNorm2d(channels[1]), nn.ReLU())
    ]
    pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 768))
    return nn.Sequential(nn.Unflatten(1, (3, 16, 16)), *convolutions, *pooled)


MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "wide": (wide, 1024),
    "deep, narrow": (deep, 64),
    "convnet": (convnet, 768),
}
"""By name: what makes the model, and how many features go in and out."""


class _Trainer:
    """A model of its own, stepping on one batch."""

    def __init__(self, name: str, model: nn.Module, features: int, rank: int) -> None:
        self.name = name
        self._model = model
        self._optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        generator = torch.Generator().manual_seed(rank)
        self._input = torch.randn(_BATCH, features, generator=generator)
        self._target = torch.randn(_BATCH, features, generator=generator)

    def steps(self, count: int) -> None:
        """Train."""
        for _ in range(count):
            self._optimizer.zero_grad()
            loss = nn.functional.mse_loss(self._model(self._input), self._target)
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
        # What one contender's gradients lie in, the next one's can: whoever finds no such memory pays for page faults.
        self._optimizer.zero_grad()

    def checksum(self) -> float:
        """Return the sum of all parameters: equal on all ranks exactly if they average."""
        return float(sum(_whole(parameter.detach()).double().sum() for parameter in self._model.parameters()))


def _whole(tensor: Any) -> torch.Tensor:
    """Return the whole tensor if it is sharded over the ranks; otherwise the tensor itself."""
    whole: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole


def _of_torch(make: Callable[[], nn.Module], gloo: Any, ours: Any) -> dict[str, nn.Module]:
    """Return a model for each of torch's ways over both groups, by the contender's name."""
    models: dict[str, nn.Module] = {}
    for name, process_group in ((DDP_OVER_GLOO, gloo), (DDP_OVER_OURS, ours)):
        # Its quickest setting: gradients are views into its buckets, as ours are.
        models[name] = nn.parallel.DistributedDataParallel(
            make(), process_group=process_group, gradient_as_bucket_view=True
        )
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:  # before torch 2.6
        return models
    from torch.distributed.device_mesh import DeviceMesh

    for name, process_group in ((FSDP_OVER_GLOO, gloo), (FSDP_OVER_OURS, ours)):
        mesh, model = DeviceMesh.from_group(process_group, "cpu"), make()
        for layer in model.children():
            if sum(parameter.numel() for parameter in layer.parameters()) >= _SHARDED_BY_THEMSELVES:
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        models[name] = model
    return models


def measure(stage: Stage) -> tuple[list[Block], dict[str, Any]]:
    """Take every contender's turn with every model, round after round."""
    from hpsearch_comm.data_parallel import DataParallel

    group = stage.group("ours")
    of_torch: tuple[Any, ...] = ()
    if "gloo" in stage.plan.against:
        stage.gloo()
        of_torch = (importlib.import_module("torch.distributed").group.WORLD, stage.torchs_group())
    blocks: list[Block] = []
    parameters: dict[str, int] = {}
    for subject, (make, features) in MODELS.items():
        torch.manual_seed(0)
        plain = make()
        parameters[subject] = sum(parameter.numel() for parameter in plain.parameters())
        models = {NO_AVERAGING: plain, "ours": DataParallel(make(), group)}
        if of_torch:
            models |= _of_torch(make, *of_torch)
        trainers = [_Trainer(name, model, features, stage.rank) for name, model in models.items()]
        for number in range(stage.plan.rounds * _TURNS):
            if number % _TURNS == 0:
                stage.say(f"{subject}: round {number // _TURNS + 1} of {stage.plan.rounds}")
            for trainer in in_turn(trainers, number):
                blocks.append(_turn(stage, trainer, subject, number))
        for trainer in trainers:
            sums = set(stage.meeting.share(trainer.checksum()))
            if trainer.name != NO_AVERAGING and len(sums) > 1:
                raise CommError(f"{trainer.name} left the ranks with different parameters ({subject})")
    return blocks, {"parameters": parameters, "steps": _STEPS}


def _turn(stage: Stage, trainer: _Trainer, subject: str, number: int) -> Block:
    trainer.steps(1)  # whoever ran before has left other data in the caches
    return repeat(stage.meeting, trainer.name, subject, number, 1, lambda: None, lambda: trainer.steps(_STEPS))
