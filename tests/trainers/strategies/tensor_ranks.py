"""Trainings with split layers; called on the ranks of process_ranks.

Ranks are no threads here: torch's DTensor, which they are compared with, is made for one rank in a process.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
import torch._dynamo  # which optimizers import when the first is made: here it is there before ranks are forked
import torch.distributed as dist
import torch.distributed.tensor
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import hpsearch_comm.torch_backend  # noqa: F401 - registers the backend
from hpsearch_comm import Group
from hpsearch_trainers.shards import Shard
from hpsearch_trainers.strategies.split_layers import forward_of, split_dimensions
from tests.trainers.strategies.split_trainings import OPTIMIZERS, deep, tied, trial
from tests.trainers.test_trainer import CLASSES, FEATURES, MODELS, ROWS, Small, data


class Residual(nn.Module):
    """Has a pair of layers, of which a rule can't know."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(FEATURES, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, inputs: Tensor) -> Any:
        """Return logits."""
        hidden = self.stem(inputs)
        return self.head(hidden + self.down(self.up(self.norm(hidden)).relu()))


class Between(nn.Module):
    """Has a pair of layers with something between them, which works on whatever features there are.

    Args:
        between: What.
    """

    def __init__(self, between: nn.Module) -> None:
        super().__init__()
        self.up, self.between, self.down = nn.Linear(FEATURES, 16), between, nn.Linear(16, CLASSES)

    def forward(self, inputs: Tensor) -> Any:
        """Return logits."""
        return self.down(self.between(self.up(inputs)).tanh())


def _heads_normalized() -> nn.Module:
    """Normalize each head of four features with the same weights."""
    return nn.Sequential(nn.Unflatten(1, (-1, 4)), nn.LayerNorm(4), nn.Flatten())


class Reused(Between):
    """Uses a weight once more, in training."""

    def forward(self, inputs: Tensor) -> Any:
        """Return logits."""
        return super().forward(inputs) * (1 + 0.1 * self.up.weight.norm() if self.training else 1.0)


def _in_place() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 8), nn.ReLU(inplace=True), nn.Linear(8, 8), nn.ELU(inplace=True), nn.Linear(8, CLASSES)
    )


def _dropout() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 16),
        nn.Dropout(0.4),
        nn.ReLU(),
        nn.Linear(16, 16),
        nn.Dropout(0.4),
        nn.LayerNorm(16),
        nn.Linear(16, CLASSES),
    )


class Custom(torch.optim.SGD):
    """An optimizer of a user's own."""


class Elementwise(Custom):
    """One that says that it may be given parts."""

    elementwise = True


_PAIR = {"up": "colwise", "down": "rowwise"}
PLANS: dict[str, dict[str, str]] = {
    "a pair": _PAIR,
    "a pair and the others": {**_PAIR, "stem": "gathered", "head": "summed"},
    "a layer": {"down": "gathered"},
    "the stem's outputs alone": {"stem": "colwise"},
    "the first of a pair alone": {"up": "colwise"},
    "the second of a pair alone": {"down": "rowwise"},
    "the second of a pair by its outputs": {"down": "colwise"},
}

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "deep": {"model": "deep"},
    "tied": {"model": "tied", "lr": 0.02},
    "in place": {"model": "in place"},
    "a row in place": {"model": "deep", "batch_size": ROWS - 1},
    "dropout": {"model": "dropout"},
    "clipped and averaged": {"clip_norm": 0.5, "average": 0.9},
    "clipped where not all is split": {"model": "deep", "clip_norm": 0.05},
    "accumulated": {"accumulate": 2, "batch_size": 24},
    "scheduled": {"schedule": lambda epoch: 1 / (1 + epoch)},
    "half": {"precision": "bf16"},
    "continued": {"model": "deep", "optimizer": OPTIMIZERS["adamw"], "clip_norm": 1.0, "average": 0.9},
    "elementwise": {"optimizer": lambda model: Elementwise(model.parameters(), lr=0.1, momentum=0.9)},
    "custom": {"optimizer": lambda model: Custom(model.parameters(), lr=0.1, momentum=0.9)},
    "transformer": {"model": "transformer"},
    "sync": {"batch_norm": "sync"},
    **{name: {"model": "residual", "tensor": plan} for name, plan in PLANS.items()},
    "dropout between": {"model": "dropout between", "tensor": _PAIR},
    "dropout that is named": {"model": "dropout between", "tensor": _PAIR | {"between": "dropout"}},
    "a slope between": {"model": "slope between", "tensor": _PAIR},
    "heads normalized between": {"model": "heads between", "tensor": _PAIR},
    "a weight used twice": {"model": "reused", "tensor": _PAIR},
    "heads normalized behind": {"model": "heads between", "tensor": {"up": "gathered", "down": "summed"}},
    **{name: {"optimizer": optimizer, "clip_norm": 1.0} for name, optimizer in OPTIMIZERS.items()},
}
"""Parameters of `Small`, by name."""

MODELS |= {
    "dropout between": lambda: Between(nn.Dropout(0.4)),
    "slope between": lambda: Between(nn.PReLU()),
    "heads between": lambda: Between(_heads_normalized()),
    "reused": lambda: Reused(nn.Identity()),
}
MODELS.update({"deep": deep, "tied": tied, "in place": _in_place, "residual": Residual, "dropout": _dropout})


def _look(*_: Any) -> None:
    pass


def _softmax(_layer: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
    return output.softmax(-1)


def trains(
    group: Group, case: str, epochs: int, load: str | None = None, save: str | None = None, hook: str = ""
) -> list[dict[str, float]]:
    """Train; return the metrics.

    Args:
        group: The ranks.
        case: One of `CASES`.
        epochs: To train.
        load: File with the state to go on from.
        save: File in which rank 0 leaves the state.
        hook: What rank 1 has behind a layer: `look` or `softmax`.
    """
    trainer: Any = Small(trial(CASES[case], group, "tensor"))
    if hook:
        if group.rank == 1:
            trainer.model[1].register_forward_hook({"look": _look, "softmax": _softmax}[hook])
        trainer._strategy.bind(trainer._trained())  # as if `build` had done it
    if load is not None:
        trainer.load_state_dict(torch.load(load))
    metrics = [trainer.step() for _ in range(epochs)]
    if save is not None and group.rank == 0:
        torch.save(trainer.state_dict(), save)
    return metrics


def penalizes(group: Group, strategy: str) -> list[dict[str, float]]:
    """Train with a loss that has a penalty on all weights."""
    trainer: Any = None

    def loss(output: Tensor, target: Tensor) -> Tensor:
        penalty = torch.stack([weights.square().sum() for weights in trainer.model.parameters()]).sum()
        return nn.functional.cross_entropy(output, target) + 0.01 * penalty

    trainer = Small(trial({"loss": loss}, group, strategy))
    return [trainer.step()]


def computes(group: Group) -> int:
    """Compare two layers with split ones, in each way; return how many ways there are."""
    ways = list(product((True, False), ((5,), (2, 3)), (("colwise", "rowwise"), ("gathered", "summed"))))
    for bias, shape, styles in ways:
        torch.manual_seed(0)
        whole = nn.Sequential(nn.Linear(4, 6, bias), nn.Linear(6, 5, bias))
        own = nn.Sequential(nn.Linear(4, 6, bias), nn.Linear(6, 5, bias))
        own.load_state_dict(whole.state_dict())
        inputs = torch.randn(*shape, 4, requires_grad=True)
        torch.autograd.backward(whole(inputs).tanh().sum())
        _compare_split(group, whole, own, styles, inputs)
    return len(ways)


def _compare_split(group: Group, whole: nn.Sequential, own: nn.Sequential, styles: Any, inputs: Tensor) -> None:
    def part(tensor: Any, style: str, name: str) -> Any:
        dimensions = split_dimensions(style)
        return tensor.tensor_split(group.size, dimensions[name])[group.rank] if name in dimensions else tensor

    layers: list[tuple[Any, Any, str]] = list(zip(own, whole, styles, strict=True))
    for layer, _, style in layers:
        for name, parameter in layer.named_parameters():
            parameter.data = part(parameter.data, style, name).clone()
        layer.forward = forward_of(layer, style, group)
    given = inputs.detach().clone().requires_grad_()
    output = own(given)
    torch.autograd.backward(output.tanh().sum())
    torch.testing.assert_close(output, whole(inputs))
    torch.testing.assert_close(given.grad, inputs.grad)
    for layer, expected, style in layers:
        for name, parameter in expected.named_parameters():
            torch.testing.assert_close(getattr(layer, name).grad, part(parameter.grad, style, name))


def loads_in_the_midst(group: Group, load: str) -> list[float]:
    """Train for two epochs, then from another state; return the losses."""
    trainer = Small(trial(CASES["adamw"], group, "tensor"))
    for _ in range(2):
        trainer.step()
    trainer.load_state_dict(torch.load(load))
    return [trainer.step()["loss"] for _ in range(2)]


def holds(group: Group) -> dict[str, Any]:
    """Return the shapes of the parameters that a rank has within an epoch and after it."""
    trainer: Any = Small(trial({"optimizer": OPTIMIZERS["adamw"], "average": 0.9}, group, "tensor"))
    within: list[list[int]] = []

    def look(layer: nn.Module, *_: Any) -> None:
        if layer.training:
            models = trainer.model, trainer._average.module
            within[:] = [list(parameter.shape) for model in models for parameter in model.parameters()]

    trainer.model[1].register_forward_hook(look)
    metrics = trainer.step()
    state = trainer.optimizer.state_dict()["state"]
    return {
        "within": within,
        "after": [list(parameter.shape) for parameter in trainer.model.parameters()],
        "states": {str(number): list(state[number]["exp_avg"].shape) for number in state},
        "bytes": metrics["bytes_per_rank"],
    }


def changes_its_model(group: Group) -> list[float]:
    """Train an epoch with a model, and one with a copy; return the losses."""
    trainer = Small(trial({}, group if group.size > 1 else None, "tensor"))
    losses = [trainer.step()["loss"]]
    trainer.model = type(trainer.model)(*[_again(layer) for layer in trainer.model.children()])
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1)
    return [*losses, trainer.step()["loss"]]


def _again(layer: nn.Module) -> nn.Module:
    if not isinstance(layer, nn.Linear):
        return layer
    copied = nn.Linear(layer.in_features, layer.out_features)
    copied.load_state_dict(layer.state_dict())
    return copied


def as_torch_does(group: Group, store: str) -> bool:
    """Train as `Small` does with torch's `parallelize_module`; return whether weights are equal.

    Args:
        group: The ranks.
        store: A new file, in which the ranks of torch's process group meet.
    """
    trainer: Any = Small(trial({}, group, "tensor"))
    for _ in range(2):
        trainer.step()

    dist.init_process_group("hpsearch", f"file://{store}", rank=group.rank, world_size=group.size)
    torch.manual_seed(3)
    mesh, model = init_device_mesh("cpu", (group.size,)), MODELS["mlp"]()
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    inputs, targets = data()
    for epoch in range(2):
        for rows in Shard(ROWS, 20, 7).epoch(epoch):
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(model(inputs[rows]), targets[rows]))
            optimizer.step()
    whole: list[Any] = list(model.parameters())
    equal = [torch.equal(ours, own.full_tensor()) for ours, own in zip(trainer.model.parameters(), whole, strict=True)]
    dist.destroy_process_group()
    return all(equal)
