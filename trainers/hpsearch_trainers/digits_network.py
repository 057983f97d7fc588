"""Train networks whose architecture is a parameter on scikit-learn's digits: layers in order, or a cell.

`layers` and `cell` are what the sweep's structures give, of the operations of `hpsearch_trainers.architectures`;
`hidden` is a list of widths; `optimizer` is one name to its parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_trainers.architectures import network
from hpsearch_trainers.digits import correct, digits
from hpsearch_trainers.measures import latency, parameters
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.trainer import Trainer

__all__ = [
    "CellNetwork",
    "ChainNetwork",
    "MeasuredChain",
    "Network",
    "Perceptron",
    "cell",
    "chain",
    "chain_parameters",
    "measured_chain",
    "perceptron",
]

_IMAGES = (1, 8, 8)
"""Channels, height and width."""

_CLASSES = 10

_HEAD = [{"adaptive_pool": {"side": 2}}, "flatten"]
"""What of an image's last pixels goes into the last layer."""


class Network(Trainer):
    """Reports `accuracy` on the validation images.

    Parameters beside the architecture: `optimizer` (`{"sgd": {"momentum": 0.9}}`; `sgd` takes `momentum` and
    `nesterov`, `adam` takes `beta1`), `lr` (0.05 of sgd, 0.001 of adam), `weight_decay` (0.0), `batch_size` (32), and
    `split` (0), the seed that divides the images into those to train on and those to validate on.
    """

    def network(self, params: Mapping[str, Any]) -> nn.Module:
        """Make the network.

        Raises:
            ArchitectureError: No network can be built from the architecture.
        """
        raise NotImplementedError

    def build(self, params: Mapping[str, Any]) -> Parts:
        """Make the parts."""
        data = digits(int(params.get("split", 0)))
        model = self.network(params)
        return Parts(
            model,
            _optimizer(model, params),
            functional.cross_entropy,
            train=(data.images, data.labels),
            validation=(data.validation_images, data.validation_labels),
            metrics={"accuracy": correct},
            batch_size=int(params.get("batch_size", 32)),
            measures=self.measures(data.validation_images),
        )

    def measures(self, images: Tensor) -> Mapping[str, Callable[[nn.Module], float]]:
        """Say what is measured of the network, given images that it may be shown."""
        return {}


class Perceptron(Network):
    """Dense layers of the widths `hidden` ([64]), each behind a dropout of `dropout` (0.0)."""

    def network(self, params: Mapping[str, Any]) -> nn.Module:
        """Make it."""
        dropout = float(params.get("dropout", 0.0))
        layers = [{"dense": {"features": width, "dropout": dropout}} for width in params.get("hidden", [64])]
        return network(layers, _IMAGES, _CLASSES, stem="flatten", path="hidden")


class ChainNetwork(Network):
    """The layers of `layers` in order. `pool` leaves an image of one pixel as it is."""

    def network(self, params: Mapping[str, Any]) -> nn.Module:
        """Make it."""
        return network(params["layers"], _IMAGES, _CLASSES, head=_HEAD, path="layers")


class MeasuredChain(ChainNetwork):
    """Reports what the network costs as well: `parameters`, and `latency_ms` for 100 images on this worker."""

    def measures(self, images: Tensor) -> Mapping[str, Callable[[nn.Module], float]]:
        """Count the parameters and take the time."""
        return {"parameters": parameters, "latency_ms": latency(images[:100])}


class CellNetwork(Network):
    """A convolution to `channels` (16), the cell `cell`, a pool, the same cell anew, and a head.

    The output of a cell with operations on its nodes is the mean of those that no other takes; all of its inputs are
    what stands before it.
    """

    def network(self, params: Mapping[str, Any]) -> nn.Module:
        """Make it."""
        stem = {"conv": {"channels": int(params.get("channels", 16))}}
        cell = params["cell"]
        return network([cell, "pool", cell], _IMAGES, _CLASSES, stem=stem, head=_HEAD, path="cell")


def chain_parameters(params: Mapping[str, Any]) -> int:
    """Count what the network of a chain would train, before there is one: for `derived` in a sweep.

    Raises:
        ArchitectureError: No network can be built from the layers.
    """
    with torch.device("meta"):  # where no weights are allocated
        return int(parameters(network(params["layers"], _IMAGES, _CLASSES, head=_HEAD, path="layers")))


perceptron, chain, measured_chain, cell = Perceptron, ChainNetwork, MeasuredChain, CellNetwork
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
