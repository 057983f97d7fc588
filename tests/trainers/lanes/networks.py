"""Small trainers whose networks are drawn: each lane builds its own from a list of layers and settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_trainers import Parts, Trainer, schedules
from hpsearch_trainers.lamb import LAMB
from hpsearch_trainers.lanes.bits import same_bits
from hpsearch_trainers.lars import LARS

ROWS, VALIDATION_ROWS, CLASSES = 53, 23, 3


@dataclass(frozen=True)
class Trial:
    params: Mapping[str, Any]
    seed: int = 0
    scaling: Mapping[str, Any] = field(default_factory=dict)


class Gated(nn.Module):
    """Adds, multiplies and joins, by operators and functions."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.one = nn.Linear(features, features)
        self.other = nn.Linear(features, features, bias=False)
        self.scale = nn.Parameter(torch.ones(features))
        self.register_buffer("shift", torch.linspace(-1, 1, features))

    def forward(self, x: Tensor) -> Tensor:
        gate: Tensor = torch.sigmoid(self.one(x))
        mixed = gate * self.other(x) + (1 - gate) * x / 2
        mixed = mixed * self.scale + self.shift
        halves = torch.cat([mixed[:, 1:], mixed[:, :1]], dim=-1)
        return functional.dropout(functional.relu(mixed - halves), 0.25, self.training)


class Exponential(nn.Module):
    """Bells around 0, by an operator, a function and a method."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(-x.abs()) - (x * -0.5).exp() / (1 + torch.exp(x * -0.5))


class Powers(nn.Module):
    """Whole powers by operators, and one that only positive numbers have."""

    def forward(self, x: Tensor) -> Tensor:
        small = torch.tanh(x)
        return small**2 - small**3 + (small.abs() + 0.1).pow(1.5) + torch.pow(small, 2) * 2.0**small


class Counting(nn.Module):
    """Keeps a mean of what it has seen, and a count, in buffers."""

    mean: Tensor
    seen: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
                self.seen += 1
        return x - self.mean


class Attending(nn.Module):
    """A transformer's layer over the features as places."""

    def __init__(self, features: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.spread = nn.Linear(1, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout, "gelu", batch_first=True, norm_first=True)
        self.fold = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Any:
        return self.fold(self.layer(self.spread(x.unsqueeze(-1)))).squeeze(-1)


class Heads(nn.Module):
    """Attention written out."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features
        self.all = nn.Linear(features, 3 * 8)
        self.out = nn.Linear(8, features)

    def forward(self, x: Tensor) -> Any:
        rows = x.shape[0]
        q, k, v = self.all(x).view(rows, 3, 2, 2, 2).permute(1, 0, 2, 3, 4).unbind(0)
        weights = torch.softmax(q @ k.transpose(-2, -1) / 2**0.5, dim=-1)
        return x + self.out((weights @ v).reshape(rows, -1))


LAYERS: Mapping[str, Callable[[int], nn.Module]] = {
    "linear": lambda features: nn.Linear(features, features),
    "relu": lambda _: nn.ReLU(),
    "relu in place": lambda _: nn.ReLU(inplace=True),
    "leaky": lambda _: nn.LeakyReLU(0.2),
    "tanh": lambda _: nn.Tanh(),
    "sigmoid": lambda _: nn.Sigmoid(),
    "gelu": lambda _: nn.GELU(),
    "gelu by tanh": lambda _: nn.GELU(approximate="tanh"),
    "silu": lambda _: nn.SiLU(),
    "elu": lambda _: nn.ELU(),
    "softplus": lambda _: nn.Softplus(),
    "hardswish": lambda _: nn.Hardswish(),
    "layer norm": nn.LayerNorm,
    "batch norm": nn.BatchNorm1d,
    "exponential": lambda _: Exponential(),
    "powers": lambda _: Powers(),
    "gated": Gated,
    "counting": Counting,
    "heads": Heads,
    "attending": Attending,
    "identity": lambda _: nn.Identity(),
}
"""Of rows of features, which they keep as many."""

IMAGE_LAYERS: Mapping[str, Callable[[int], nn.Module]] = {
    "convolution": lambda channels: nn.Conv2d(channels, channels, 3, padding=1),
    "depthwise": lambda channels: nn.Conv2d(channels, channels, 3, padding=1, groups=channels),
    "relu": lambda _: nn.ReLU(inplace=True),
    "silu": lambda _: nn.SiLU(),
    "batch norm": nn.BatchNorm2d,
    "group norm": lambda channels: nn.GroupNorm(1, channels),
    "max pool": lambda _: nn.MaxPool2d(3, 1, 1),
    "average pool": lambda _: nn.AvgPool2d(3, 1, 1),
    "dropout": lambda _: nn.Dropout2d(0.25),
}
"""Of images, whose channels and size they keep."""

OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda model, lr: torch.optim.SGD(model.parameters(), lr=lr),
    "momentum": lambda model, lr: torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=0.01),
    "fused sgd": lambda model, lr: torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, fused=True),
    "nesterov": lambda model, lr: torch.optim.SGD(
        [{"params": [one], "weight_decay": 0.01 * number} for number, one in enumerate(model.parameters())],
        lr=lr,
        momentum=0.8,
        nesterov=True,
        fused=True,
    ),
    "rate in a tensor": lambda model, lr: torch.optim.SGD(
        [{"params": [*model.parameters()], "lr": torch.tensor(lr)}], lr=1.0
    ),
    "adam": lambda model, lr: torch.optim.Adam(model.parameters(), lr=lr / 10),
    "adamw": lambda model, lr: torch.optim.AdamW(
        [{"params": [one], "weight_decay": 0.1 * number} for number, one in enumerate(model.parameters())],
        lr=lr / 10,
        amsgrad=True,
    ),
    "fused adam": lambda model, lr: torch.optim.Adam(
        [{"params": [one], "weight_decay": 0.1 * number} for number, one in enumerate(model.parameters())],
        lr=lr / 10,
        amsgrad=True,
        fused=True,
    ),
    "adam as adamw": lambda model, lr: torch.optim.Adam(
        model.parameters(), lr=lr / 10, weight_decay=0.1, decoupled_weight_decay=True, fused=True
    ),
    "fused adamw": lambda model, lr: torch.optim.AdamW(model.parameters(), lr=lr / 10, fused=True),
    "rmsprop": lambda model, lr: torch.optim.RMSprop(model.parameters(), lr=lr / 30, momentum=0.5),
    "lamb": lambda model, lr: LAMB(model.parameters(), lr=lr / 10),
    "lars": lambda model, lr: LARS(model.parameters(), lr=lr),
}

LOSSES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross entropy": functional.cross_entropy,
    "as a module": nn.CrossEntropyLoss(),
    "smoothed": nn.CrossEntropyLoss(label_smoothing=0.1),
    "margin": functional.multi_margin_loss,
}


def _inputs(shape: Sequence[int], rows: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, *shape, generator=generator)
    return inputs, torch.randint(CLASSES, (rows,), generator=generator)


class Drawn(Trainer):
    """Its params: `layers`, `image`, `features`, `hidden`, and settings of `Parts`."""

    def build(self, params):
        features, hidden = params.get("features", 7), params.get("hidden", 13)
        layers: list[nn.Module] = []
        if params.get("image"):
            shape: tuple[int, ...] = (2, 5, 5)
            layers = [nn.Conv2d(2, hidden, 3, padding=1), *(IMAGE_LAYERS[name](hidden) for name in params["layers"])]
            layers += [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * hidden, CLASSES)]
        else:
            shape = (features,)
            layers = [nn.Linear(features, hidden), *(LAYERS[name](hidden) for name in params["layers"])]
            layers += [nn.Dropout(params.get("dropout", 0.0)), nn.Linear(hidden, CLASSES)]
        model = nn.Sequential(*layers)
        given = {
            name: params[name]
            for name in ("clip_norm", "average", "accumulate", "batch_size", "precision")
            if name in params
        }
        if "warmup" in params:
            given["schedule"] = schedules.warmup(params["warmup"])
        own = params.get("own data")
        optimizer = OPTIMIZERS[params.get("optimizer", "fused sgd")](model, params.get("lr", 0.1))
        for group in optimizer.param_groups:
            if "betas" in group:
                group["betas"] = params.get("betas", group["betas"])
        return Parts(
            model,
            optimizer,
            LOSSES[params.get("loss", "cross entropy")],
            train=_inputs(shape, ROWS, own) if own is not None else _shared(shape, ROWS),
            validation=_inputs(shape, VALIDATION_ROWS, 1),
            metrics={"accuracy": lambda output, target: (output.argmax(1) == target).float()},
            validation_batch_size=params.get("validation_batch_size", 16),
            freeze_batch_norm=params.get("freeze"),
            **given,
        )


_MADE: dict[tuple[Any, ...], tuple[Tensor, Tensor]] = {}


def _shared(shape: Sequence[int], rows: int) -> tuple[Tensor, Tensor]:
    return _MADE.setdefault((*shape, rows), _inputs(shape, rows, 0))


def made(kind: type[Trainer], lanes: Sequence[Mapping[str, Any]]) -> list[Trainer]:
    """Build each lane's trainer under its own seed."""
    trainers = []
    for seed, params in enumerate(lanes):
        torch.manual_seed(seed)
        trainers.append(kind(Trial(params, seed)))
    return trainers


def assert_same(metrics: Sequence[Any], expected: Sequence[Any], ours: Sequence[Trainer], theirs: Sequence[Trainer]):
    """Compare to the bit what was reported, and all that would be saved."""
    for one, other in zip(metrics, expected, strict=True):
        told = {name: (value, other[name]) for name, value in one.items() if name != "data_wait"}
        assert [*one] == [*other]
        assert [name for name, pair in told.items() if not same_bits(*pair)] == [], told
    for one, other in zip(ours, theirs, strict=True):
        assert same_bits(one.state_dict(), other.state_dict())
