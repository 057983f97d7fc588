"""Train networks whose architecture is a parameter on scikit-learn's digits: layers in order, or a cell.

What the sweep's structures give is read as it is: `layers` is a list of the layers of a chain, each one name to its
parameters or a name alone; `cell` is what a cell gives, with operations on its edges or on its nodes; `hidden` is a
list of widths; `optimizer` is one name to its parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_trainers.digits import correct, digits
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.trainer import Trainer

__all__ = ["CellNetwork", "ChainNetwork", "Network", "Perceptron", "cell", "chain", "perceptron"]

_CLASSES = 10
_SIDE = 8
"""Pixels of an image's side."""


class Network(Trainer):
    """Reports `accuracy` on the validation images.

    Parameters beside the architecture: `optimizer` (`{"sgd": {"momentum": 0.9}}`; `sgd` takes `momentum` and
    `nesterov`, `adam` takes `beta1`), `lr` (0.05 of sgd, 0.001 of adam), `weight_decay` (0.0), `batch_size` (32).
    """

    def network(self, params: Mapping[str, Any]) -> nn.Module:
        """Make the network.

        Raises:
            ValueError: The architecture names what there isn't.
        """
        raise NotImplementedError

    def build(self, params: Mapping[str, Any]) -> Parts:
        """Make the parts."""
        data = digits()
        model = self.network(params)
        return Parts(
            model,
            _optimizer(model, params),
            functional.cross_entropy,
            train=(data.images, data.labels),
            validation=(data.validation_images, data.validation_labels),
            metrics={"accuracy": correct},
            batch_size=int(params.get("batch_size", 32)),
        )


class Perceptron(Network):
    """Dense layers of the widths `hidden` ([64]), each behind a dropout of `dropout` (0.0)."""

    def network(self, params: Mapping[str, Any]) -> nn.Module:
        """Make it."""
        layers: list[nn.Module] = [nn.Flatten()]
        before = _SIDE * _SIDE
        for width in params.get("hidden", [64]):
            layers += [nn.Linear(before, width), nn.ReLU(), nn.Dropout(float(params.get("dropout", 0.0)))]
            before = width
        return nn.Sequential(*layers, nn.Linear(before, _CLASSES))


class ChainNetwork(Network):
    """The layers of `layers` in order: `conv` and `separable` with `channels` and `kernel`, `pool`, `skip`.

    A pool that finds less than two pixels leaves them as they are.
    """

    def network(self, params: Mapping[str, Any]) -> nn.Module:
        """Make it."""
        layers: list[nn.Module] = []
        channels, side = 1, _SIDE
        for layer in params["layers"]:
            name, own = _named(layer)
            if name == "pool":
                if side >= 2:
                    layers.append(nn.MaxPool2d(2))
                    side //= 2
            elif name in ("conv", "separable"):
                width = int(own["channels"])
                layers += _convolution(name, channels, width, int(own["kernel"]))
                channels = width
            elif name != "skip":
                raise ValueError(f"a layer must be conv, separable, pool or skip, got {name!r}")
        return nn.Sequential(*layers, *_head(channels))


class CellNetwork(Network):
    """A convolution to `channels` (16), the cell `cell`, a pool, the same cell anew, and a head.

    Operations: `none`, `skip`, `conv1`, `conv3`, `separable3`, `max3`, `average3`. A cell with operations on its edges
    sums what comes to a node. In one with operations on its nodes a node sums its two inputs, and the output is the
    mean of the nodes that no other takes; both inputs of a cell are what stands before it.
    """

    def network(self, params: Mapping[str, Any]) -> nn.Module:
        """Make it."""
        channels = int(params.get("channels", 16))
        given = params["cell"]
        kind = EdgeCell if all("-" in name for name in given) else NodeCell
        return nn.Sequential(
            *_convolution("conv", 1, channels, 3),
            kind(given, channels),
            nn.MaxPool2d(2),
            kind(given, channels),
            *_head(channels),
        )


class EdgeCell(nn.Module):
    """Operations on edges, `{"0-1": "conv3", ...}`: node 0 is the input, the last one the output."""

    def __init__(self, edges: Mapping[str, Any], channels: int) -> None:
        super().__init__()
        self.operations = nn.ModuleDict({edge: _operation(given, channels) for edge, given in edges.items()})
        self.nodes = 1 + max(int(edge.split("-")[1]) for edge in edges)

    def forward(self, images: Tensor) -> Tensor:
        """Give the output node's value."""
        values = [images]
        for node in range(1, self.nodes):
            terms = [self.operations[f"{start}-{node}"](values[start]) for start in range(node)]
            values.append(torch.stack(terms).sum(0))
        return values[-1]


class NodeCell(nn.Module):
    """Two inputs and two operations for each node: `{"2": [{"from": 0, "operation": "conv3"}, {...}], ...}`."""

    def __init__(self, nodes: Mapping[str, Sequence[Mapping[str, Any]]], channels: int) -> None:
        super().__init__()
        self.inputs = min(map(int, nodes))
        self.sources = [[int(side["from"]) for side in sides] for sides in nodes.values()]
        self.operations = nn.ModuleList(
            nn.ModuleList(_operation(side["operation"], channels) for side in sides) for sides in nodes.values()
        )
        taken = {source for sources in self.sources for source in sources}
        self.loose = [node for node in range(self.inputs, self.inputs + len(nodes)) if node not in taken]

    def forward(self, images: Tensor) -> Tensor:
        """Give the mean of the nodes that no other takes."""
        values = [images] * self.inputs
        for sources, operations in zip(self.sources, self.operations, strict=True):
            assert isinstance(operations, nn.ModuleList)
            terms = [operation(values[source]) for source, operation in zip(sources, operations, strict=True)]
            values.append(torch.stack(terms).sum(0))
        return torch.stack([values[node] for node in self.loose]).mean(0)


class _Zero(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.new_zeros(images.shape)


perceptron, chain, cell = Perceptron, ChainNetwork, CellNetwork
"""The names by which sweep files call them."""


def _named(given: Any) -> tuple[str, Mapping[str, Any]]:
    """Give a name, and its parameters where it has some."""
    if isinstance(given, str):
        return given, {}
    ((name, own),) = given.items()
    return name, own


def _optimizer(model: nn.Module, params: Mapping[str, Any]) -> torch.optim.Optimizer:
    name, own = _named(params.get("optimizer", {"sgd": {"momentum": 0.9}}))
    decay = float(params.get("weight_decay", 0.0))
    weights = list(model.parameters())
    if name == "sgd":
        rate, momentum = float(params.get("lr", 0.05)), float(own.get("momentum", 0.0))
        nesterov = bool(own.get("nesterov", False)) and momentum > 0
        return torch.optim.SGD(weights, lr=rate, momentum=momentum, nesterov=nesterov, weight_decay=decay, fused=True)
    if name == "adam":
        betas = (float(own.get("beta1", 0.9)), 0.999)
        return torch.optim.Adam(weights, lr=float(params.get("lr", 0.001)), betas=betas, weight_decay=decay, fused=True)
    raise ValueError(f"an optimizer must be sgd or adam, got {name!r}")


def _convolution(name: str, before: int, channels: int, kernel: int) -> list[nn.Module]:
    """Give a convolution that keeps the image's size, with batch normalization and ReLU."""
    if name == "separable":
        deep = nn.Conv2d(before, before, kernel, padding=kernel // 2, groups=before, bias=False)
        layers: list[nn.Module] = [deep, nn.Conv2d(before, channels, 1, bias=False)]
    else:
        layers = [nn.Conv2d(before, channels, kernel, padding=kernel // 2, bias=False)]
    return [*layers, nn.BatchNorm2d(channels), nn.ReLU()]


def _operation(given: Any, channels: int) -> nn.Module:
    name, _ = _named(given)
    match name:
        case "none":
            return _Zero()
        case "skip":
            return nn.Identity()
        case "conv1" | "conv3" | "separable3":
            return nn.Sequential(*_convolution(name[:-1], channels, channels, int(name[-1])))
        case "max3":
            return nn.MaxPool2d(3, stride=1, padding=1)
        case "average3":
            return nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)
    known = "none, skip, conv1, conv3, separable3, max3 or average3"
    raise ValueError(f"an operation must be {known}, got {name!r}")


def _head(channels: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, _CLASSES)]
