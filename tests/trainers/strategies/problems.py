"""What strategies train: a problem that a line separates, and what a strategy may not have thought of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_trainers.lamb import LAMB
from hpsearch_trainers.lars import LARS
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.trainer import Trainer

ROWS, FEATURES = 203, 8


def rows_of(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return rows of two classes with a gap between them."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, FEATURES, generator=generator)
    direction = functional.normalize(torch.ones(FEATURES), dim=0)
    classes = (inputs @ direction > 0).long()
    return inputs + 0.5 * (2.0 * classes[:, None] - 1.0) * direction, classes


def _correct(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax(1) == target).float()


def _layers() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 2))


def _normalized() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 2))


class _Unused(nn.Module):
    """Has a layer that no row goes through, and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(FEATURES, FEATURES)
        self.frozen.requires_grad_(False)
        self.unused = nn.Linear(3, 3)

    def forward(self, inputs: Tensor) -> Any:
        return inputs + self.frozen(inputs)


def _tied() -> nn.Module:
    """Return a model in which two layers share a weight."""
    first, second = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), nn.Linear(FEATURES, 2))


class _Sparse(nn.Module):
    """Looks up a vector for each feature above zero and each below; its gradient has the rows looked up alone."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(2 * FEATURES + 5, 4, sparse=True)

    def forward(self, inputs: Tensor) -> Any:
        return self.table(2 * torch.arange(FEATURES) + (inputs > 0)).mean(1)


class _SlowCopy(nn.Module):
    """Has a copy of a layer that follows it, by itself.

    Args:
        moves: Changes one of the copy's parameters, given it and what it follows.
    """

    def __init__(self, moves: Callable[[nn.Parameter, Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.copy = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES).requires_grad_(False)
        self._moves = moves

    @torch.no_grad()
    def _follow(self) -> None:
        for slow, quick in zip(self.copy.parameters(), self.layer.parameters(), strict=True):
            self._moves(slow, quick.detach())

    def forward(self, inputs: Tensor) -> Any:
        if self.training:
            self._follow()
        return self.layer(inputs) + self.copy(inputs)


def _in_place(slow: nn.Parameter, quick: Tensor) -> None:
    slow.data.mul_(0.9).add_(quick, alpha=0.1)  # of which nothing that watches the parameter hears


def _anew(slow: nn.Parameter, quick: Tensor) -> None:
    slow.data = 0.9 * slow.data + 0.1 * quick


def _slow_copy(moves: Callable[[nn.Parameter, Tensor], Any]) -> nn.Module:
    return nn.Sequential(_SlowCopy(moves), nn.Tanh(), nn.Linear(FEATURES, 2))


def _looked_up() -> nn.Module:
    return nn.Sequential(_Sparse(), nn.Tanh(), nn.Linear(4, 2))


def _sgd(parameters: Any, **settings: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, **({"lr": 0.1, "momentum": 0.9} | settings))


def _groups(model: nn.Module) -> torch.optim.Optimizer:
    biases = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    weights = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    return _sgd([{"params": weights, "weight_decay": 0.01}, {"params": biases, "lr": 0.02}])


@dataclass(frozen=True)
class Odd:
    """Something that a strategy may not have thought of."""

    what: str
    """As a strategy's `refuses` names it."""
    parts: Callable[[nn.Module], Mapping[str, Any]] = lambda model: {}
    """Given the model, what differs."""
    model: Callable[[], nn.Module] = _layers
    rows: int = ROWS
    alike: bool = True
    """One rank that trains on the same global batches has the same losses."""
    scaling: Mapping[str, Any] = field(default_factory=dict)
    rounding: float = 1e-4
    """How far it may take a loss from that of one rank."""


ODD = {
    "plain": Odd("plain"),
    "accumulate": Odd("accumulate", lambda model: {"accumulate": 3}),
    "clip_norm": Odd("clip_norm", lambda model: {"clip_norm": 0.05}),
    "average": Odd("average", lambda model: {"average": 0.9}),
    "autocast": Odd("autocast", lambda model: {"precision": "bf16"}, rounding=0.05),
    "float16": Odd("float16", lambda model: {"precision": "fp16"}, rounding=0.05),
    "batch_norm": Odd("batch normalization", model=_normalized, rows=200, alike=False),
    "sync_batch_norm": Odd("batch_norm", lambda model: {"batch_norm": "sync"}, model=_normalized),
    "freeze_batch_norm": Odd(
        "freeze_batch_norm", lambda model: {"freeze_batch_norm": 1}, model=_normalized, rows=200, alike=False
    ),
    "schedule": Odd("schedule", lambda model: {"schedule": lambda epoch: 1.0 / (1.0 + epoch)}),
    "warmup": Odd("warmup", scaling={"batch": "per_worker", "warmup_epochs": 1}, alike=False),
    "adam": Odd("Adam", lambda model: {"optimizer": torch.optim.Adam(model.parameters(), lr=0.01)}),
    "lamb": Odd("LAMB", lambda model: {"optimizer": LAMB(model.parameters(), lr=0.01)}),
    "lars": Odd("LARS", lambda model: {"optimizer": LARS(model.parameters(), lr=1.0, trust=0.02)}),
    "lars_schedule": Odd(
        "LARS",
        lambda model: {
            "optimizer": LARS(model.parameters(), lr=1.0, trust=0.02),
            "schedule": lambda epoch: 1.0 / (1.0 + epoch),
        },
    ),
    "groups": Odd("groups of parameters", lambda model: {"optimizer": _groups(model)}),
    "unused": Odd("parameters without a gradient", model=lambda: nn.Sequential(_Unused(), _layers())),
    "tied": Odd("shared parameters", model=_tied),
    "sparse": Odd("sparse gradients", model=_looked_up),
    "sparse_clip_norm": Odd("sparse gradients", lambda model: {"clip_norm": 0.05}, model=_looked_up),
    "sparse_adam": Odd(
        "sparse gradients",
        lambda model: {
            "optimizer": torch.optim.SparseAdam(
                [parameter for name, parameter in model.named_parameters() if name == "0.table.weight"], lr=0.05
            )
        },
        model=_looked_up,
    ),
    "slow_copy": Odd("a slow copy", model=lambda: _slow_copy(_in_place), alike=False),
    "slow_copy_anew": Odd("a slow copy", model=lambda: _slow_copy(_anew), alike=False),
    "few_rows": Odd("few rows", rows=81),  # in batches of 20: the last one has a single row
    "double": Odd("float64", lambda model: {"optimizer": _sgd(model.double().parameters())}),
}
"""Problems, by name."""


class Problem(Trainer):
    """Trains the one of `ODD` that `params["odd"]` names; `params["watch"]` is told of each pass of a layer."""

    def build(self, params: Mapping[str, Any]) -> Parts:
        odd = ODD[params.get("odd", "plain")]
        torch.manual_seed(3)
        model = odd.model()
        chosen = dict(odd.parts(model))
        optimizer = chosen.pop("optimizer", None) or _sgd(model.parameters())
        dtype = next(model.parameters()).dtype
        train, validation = ((inputs.to(dtype), classes) for inputs, classes in (rows_of(odd.rows, 1), rows_of(101, 2)))
        if (watch := params.get("watch")) is not None:
            for layer in model.modules():
                if not list(layer.children()):
                    layer.register_forward_hook(watch)
        metrics = {"accuracy": _correct}
        return Parts(
            model, optimizer, functional.cross_entropy, train, validation, metrics=metrics, batch_size=20, **chosen
        )


class Watch:
    """Is told of each pass through a layer in training, and does something in one of them, or in each from there.

    Args:
        at: The pass, from 1.
        act: What it does.
        on: In each from there.
    """

    def __init__(self, at: int, act: Callable[[], None], *, on: bool = False) -> None:
        self._passes, self._at, self._act, self._on = 0, at, act, on

    def __call__(self, layer: nn.Module, _inputs: Any, _output: Any) -> None:
        """Count a pass."""
        if layer.training:
            self._passes += 1
            if self._passes == self._at or (self._on and self._passes > self._at):
                self._act()
