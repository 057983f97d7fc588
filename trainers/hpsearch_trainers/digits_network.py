"""Train networks on scikit-learn's digits. The architecture, a chain of layers or a cell, is a parameter.

`layers` and `cell` are structures of the sweep, made of the operations of `hpsearch_trainers.architectures`. `hidden`
is a list of layer widths. `optimizer` maps the optimizer's name to its parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_trainers.architectures import network
from hpsearch_trainers.architectures.plan import named
from hpsearch_trainers.digits import correct, digits
from hpsearch_trainers.measures import latency, parameters
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.trainer import Trainer

_IMAGES = (1, 8, 8)
"""Channels, height and width."""

_CLASSES = 10

_HEAD = [{"adaptive_pool": {"side": 2}}, "flatten"]
"""Layers before the last one: they pool an image to 2 x 2 pixels and flatten it."""


class DigitsNetwork(Trainer):
    """Base class of the networks. Reports `accuracy` on the validation images.

    Parameters besides the architecture: `optimizer` (`{"sgd": {"momentum": 0.9}}`; `sgd` has `momentum` and `nesterov`,
    `adam` has `beta1`), `lr` (0.05 for sgd, 0.001 for adam), `weight_decay` (0.0), `batch_size` (32), and `split` (0),
    the seed that divides the images into training and validation images.
    """

    def network(self, params: Mapping[str, Any]) -> nn.Module:
        """Return the network.

        Raises:
            ArchitectureError: No network can be built from the architecture.
        """
        raise NotImplementedError

    def build(self, params: Mapping[str, Any]) -> Parts:
        """Return the parts."""
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
        """Return the measurements of the network; see `Parts.measures`.

        Args:
            images: Images to use as input.
        """
        return {}


class Perceptron(DigitsNetwork):
    """Dense layers of the widths `hidden` ([64]), each after a dropout of `dropout` (0.0)."""

    def network(self, params: Mapping[str, Any]) -> nn.Module:
        """Return the network."""
        dropout = float(params.get("dropout", 0.0))
        layers = [{"dense": {"features": width, "dropout": dropout}} for width in params.get("hidden", [64])]
        return network(layers, _IMAGES, _CLASSES, stem="flatten", path="hidden")


class ChainNetwork(DigitsNetwork):
    """The layers of `layers` in sequence. `pool` leaves an image of one pixel unchanged."""

    def network(self, params: Mapping[str, Any]) -> nn.Module:
        """Return the network."""
        return network(params["layers"], _IMAGES, _CLASSES, head=_HEAD, path="layers")


class MeasuredChain(ChainNetwork):
    """Also reports the network's costs: `parameters`, and `latency_ms` for 100 images on this worker."""

    def measures(self, images: Tensor) -> Mapping[str, Callable[[nn.Module], float]]:
        """Return the measurements `parameters` and `latency_ms`."""
        return {"parameters": parameters, "latency_ms": latency(images[:100])}


class CellNetwork(DigitsNetwork):
    """A convolution to `channels` (16), the cell `cell`, a pooling layer, the same cell again, and a head.

    The output of a node cell is the mean of its unused nodes; all its inputs are equal.
    """

    def network(self, params: Mapping[str, Any]) -> nn.Module:
        """Return the network."""
        stem = {"conv": {"channels": int(params.get("channels", 16))}}
        cell = params["cell"]
        return network([cell, "pool", cell], _IMAGES, _CLASSES, stem=stem, head=_HEAD, path="cell")


def chain_parameters(params: Mapping[str, Any]) -> int:
    """Return the number of trainable parameters of a chain network without building it; use it in `derived`.

    Raises:
        ArchitectureError: No network can be built from the layers.
    """
    with torch.device("meta"):  # allocates no memory for weights
        return int(parameters(network(params["layers"], _IMAGES, _CLASSES, head=_HEAD, path="layers")))


perceptron, chain, measured_chain, cell = Perceptron, ChainNetwork, MeasuredChain, CellNetwork
"""Names for sweep files."""


def _optimizer(model: nn.Module, params: Mapping[str, Any]) -> torch.optim.Optimizer:
    name, options = named(params.get("optimizer", {"sgd": {"momentum": 0.9}}), "optimizer")
    decay = float(params.get("weight_decay", 0.0))
    weights = list(model.parameters())
    if name == "sgd":
        rate, momentum = float(params.get("lr", 0.05)), float(options.get("momentum", 0.0))
        nesterov = bool(options.get("nesterov", False)) and momentum > 0
        return torch.optim.SGD(weights, lr=rate, momentum=momentum, nesterov=nesterov, weight_decay=decay, fused=True)
    if name == "adam":
        betas = (float(options.get("beta1", 0.9)), 0.999)
        return torch.optim.Adam(weights, lr=float(params.get("lr", 0.001)), betas=betas, weight_decay=decay, fused=True)
    raise ValueError(f"an optimizer must be sgd or adam, got {name!r}")
