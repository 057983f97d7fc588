"""Networks for rows of numbers and for images, described by a few parameters that a sweep can search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from hpsearch.design.prepared_rows import PredictionTask
from hpsearch_trainers.architectures import network

__all__ = ["architecture", "designed"]


def architecture(params: Mapping[str, Any], task: PredictionTask) -> dict[str, Any]:
    """Return the arguments of `architectures.network`, and of `standalone`, for a task.

    Rows: `depth` (2; 0 is a linear model) dense layers of `width` (128) features with `activation` ("relu"), `norm`
    ("none", "batch", "layer"), `dropout` (0.0); `residual` (False) adds each layer's input to its output, except
    in the first; `embedding` ("none"; "periodic" with `deviation` 0.1).

    Images: `stages` (2), each of `blocks` (1) of the kind `block` ("conv", "residual" or "separable") with `channels`
    (32) in the first one and twice as many in each further one, kernels of `kernel` (3), and a pool between; `side` (2)
    pixels are left for the last layer, after a dropout of `dropout` (0.0).
    """
    body = _rows(params) if len(task.inputs) == 1 else _images(params)
    return {"value": body[0], "inputs": task.inputs, "outputs": task.outputs, "stem": body[1], "head": body[2]}


def designed(params: Mapping[str, Any], task: PredictionTask) -> nn.Module:
    """Make the network.

    Raises:
        ArchitectureError: No network can be built from the parameters.
    """
    return network(**architecture(params, task))


def _rows(params: Mapping[str, Any]) -> tuple[list[Any], list[Any], list[Any]]:
    width, dropout = int(params.get("width", 128)), float(params.get("dropout", 0.0))
    norm, activation = params.get("norm", "none"), params.get("activation", "relu")
    stem: list[Any] = []
    if params.get("embedding", "none") == "periodic":
        stem = [{"periodic": {"deviation": float(params.get("deviation", 0.1))}}]
    layers: list[Any] = []
    for number in range(int(params.get("depth", 2))):
        layer: list[Any] = [{"dense": {"features": width, "activation": "none"}}]
        layer += [] if norm == "none" else [f"{norm}_norm"]
        layer += [{"activation": {"kind": activation}}, {"dropout": {"p": dropout}}]
        layers += [{"residual": {"body": layer}}] if number > 0 and params.get("residual", False) else layer
    return layers, stem, []


def _images(params: Mapping[str, Any]) -> tuple[list[Any], list[Any], list[Any]]:
    channels, kernel, kind = int(params.get("channels", 32)), int(params.get("kernel", 3)), params.get("block", "conv")
    layers: list[Any] = []
    for stage in range(int(params.get("stages", 2))):
        layers += ["pool"] if stage > 0 else []
        for number in range(int(params.get("blocks", 1))):
            here = {"channels": channels * 2**stage, "kernel": kernel}
            if kind == "residual" and number > 0:
                layers += [{"residual": {"body": [{"conv": here}, {"conv": {**here, "activation": "none"}}]}}, "relu"]
            else:
                layers += [{"separable" if kind == "separable" else "conv": here}]
    head = [
        {"adaptive_pool": {"side": int(params.get("side", 2))}},
        "flatten",
        {"dropout": {"p": float(params.get("dropout", 0.0))}},
    ]
    return layers, [], head
