"""The trainable of `hpsearch design`: a network for prepared rows, validated by folds inside one trial.

One trial trains a network for each validated fold, all of them in parallel. Network i isn't trained on the rows of fold
i, and only it predicts them. So a score uses all validated rows, and is comparable between trials.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from hpsearch.design.prepared_rows import (
    PredictionTask,
    PreparedRows,
    assign_folds,
    even_batch,
    read_rows,
    read_task,
    training_rows,
)
from hpsearch.design.scores import SCORES, score
from hpsearch_comm.errors import ConfigurationError
from hpsearch_trainers.architectures import costs, network
from hpsearch_trainers.measures import latency, parameters
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.schedules import cosine, warmup
from hpsearch_trainers.trainer import Trainer
from hpsearch_trainers.weight_decay import decay_groups

_WARMUP = 0.05
"""Share of the epochs over which the learning rate rises."""


class DesignedNetwork(Trainer):
    """Reports all scores for the kind of task on the validated rows, and `fit_seconds`.

    `fit_seconds` is the predicted time of the last fit: one network, trained on all rows for `epochs` at this speed.

    Parameters, with defaults in parentheses: `data` (required, path of `search.npz`), `goal` (required, a name in
    `scores.SCORES`, which determines the loss), `folds` (5), `validated` (5, number of folds that are validated; 1: one
    fold is held out; 0: one network trains on all rows, and none is validated), `split_seed` (0), `epochs` (27, over
    which the learning rate falls to 0), `lr` (0.002), `weight_decay` (0.01), `batch_size` (32), `label_smoothing`
    (0.0), `shift` (0 pixels) and `mirror` (False) of images, `latency` (False; True also reports `latency_ms`), and the
    parameters of `architecture`.
    """

    rows: PreparedRows
    model: FoldNetworks

    def build(self, params: Mapping[str, Any]) -> Parts:
        """Return the parts of the training.

        Raises:
            ConfigurationError: The data can't be read, or doesn't match the parameters.
            ArchitectureError: No network can be built from the parameters.
        """
        self.rows = read_rows(Path(params["data"]))
        task, count = self.rows.task, int(params.get("validated", 5))
        goal = SCORES.get(params["goal"])
        if goal is None or goal.kind != task.kind:
            able = ", ".join(score_kind.name for score_kind in SCORES.values() if score_kind.kind == task.kind)
            raise ConfigurationError(f"goal must be one for {task.kind}, of {able}; got {params['goal']!r}")
        folds, seed = int(params.get("folds", 5)), int(params.get("split_seed", 0))
        if not 0 <= count <= folds:
            raise ConfigurationError(f"validated must be from 0 to the {folds} folds, got {count}")
        self._folds = np.full(len(self.rows.targets), -1)
        if count > 0:
            dealt = assign_folds(self.rows.inputs, self.rows.targets, folds, seed)
            self._folds = np.where(dealt < count, dealt, -1)
        chosen = training_rows(self._folds, count, seed)
        inputs = torch.from_numpy(self.rows.inputs).to(self.device)
        targets = torch.from_numpy(self.rows.targets).to(self.device)
        self._scale = TargetScale(targets, chosen.to(self.device)) if task.kind == "numbers" else None
        networks = [designed(params, task) for _ in range(max(1, count))]
        model = FoldNetworks(networks, inputs, self._channels(), self._augment)
        epochs = float(params.get("epochs", 27))
        falling, rising = cosine(epochs), warmup(max(1.0, _WARMUP * epochs), start=0.1)
        self._seconds, self._epochs_timed, self._fit_epochs = 0.0, 0, epochs * len(targets) / len(chosen)
        return Parts(
            model,
            torch.optim.AdamW(
                decay_groups(model, float(params.get("weight_decay", 0.01)), biases=False),
                lr=float(params.get("lr", 0.002)),
                fused=True,
            ),
            fold_loss(
                targets,
                chosen.to(self.device),
                classes=task.outputs if task.kind == "classes" else None,
                weighted=goal.weighted,
                smoothing=float(params.get("label_smoothing", 0.0)),
                absolute=goal.name == "mae",
            ),
            train=(chosen, chosen),
            batch_size=even_batch(len(chosen), int(params.get("batch_size", 32))),
            schedule=lambda epoch: falling(epoch) * rising(epoch),
            measures={"latency_ms": self._latency} if params.get("latency", False) else {},
        )

    def step(self) -> dict[str, float]:
        """Train for an epoch and validate."""
        began, self._validating = time.perf_counter(), 0.0
        metrics = super().step()
        if self._folds.max() < 0:
            return metrics
        self._seconds += time.perf_counter() - began - self._validating
        self._epochs_timed += 1
        each = self._seconds / self._epochs_timed / len(self.model.networks)
        return metrics | {"fit_seconds": each * self._fit_epochs}

    def validate(self) -> dict[str, float]:
        """Return all scores on the validated rows; each row is predicted by the network that didn't train on it."""
        began = time.perf_counter()
        self.model.eval()
        values: dict[str, float] = {}
        if self._folds.max() >= 0:
            predictions, rows = self.validated()
            true = self.rows.targets[rows]
            values = {
                score_kind.name: score(score_kind.name, predictions, true)
                for score_kind in SCORES.values()
                if score_kind.kind == self.rows.task.kind
            }
        self._validating = time.perf_counter() - began
        return values

    def validated(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return predictions for the validated rows, and the indices of these rows.

        Returns:
            Probabilities (rows, classes), or numbers (rows,), float64; and int64 (rows,).
        """
        rows, parts = [], []
        for number in range(len(self.model.networks)):
            validation_rows = np.flatnonzero(self._folds == number)
            rows.append(validation_rows)
            outputs = self.model.predict(number, torch.from_numpy(validation_rows).to(self.device))
            if self._scale is not None:
                parts.append(self._scale.in_units(number, outputs[:, 0]))
            else:
                parts.append(outputs.double().softmax(1))
        return torch.cat(parts).cpu().numpy(), np.concatenate(rows)

    @torch.no_grad()
    def predictions(self, rows: PreparedRows) -> np.ndarray[Any, Any]:
        """Return the first network's predictions for other rows, in evaluation mode.

        Returns:
            Probabilities (rows, classes), or numbers (rows,), float64.
        """
        network = self.model.networks[0]
        device = next(network.parameters()).device  # the CPU after `delivered`
        channels = self._channels()
        inputs = torch.from_numpy(rows.inputs).to(device)
        networks = FoldNetworks([network], inputs, None if channels is None else channels.to(device), lambda x: x)
        outputs = networks.predict(0, torch.arange(len(rows.targets), device=device)).to(self.device)
        if self._scale is not None:
            return self._scale.in_units(0, outputs[:, 0]).cpu().numpy()
        return outputs.double().softmax(1).cpu().numpy()

    def _channels(self) -> Tensor | None:
        channels = self.rows.task.channels
        return None if channels is None else torch.tensor(channels, device=self.device)

    def delivered(self) -> nn.Module:
        """Return the network that was trained on all rows, in evaluation mode.

        If the targets are numbers, the outputs are standardized by the task's `target_mean` and `target_scale`.

        Raises:
            ConfigurationError: There are several networks, none of which was trained on all rows.
        """
        if self._folds.max() >= 0:
            raise ConfigurationError("only a network that trained on all rows is delivered: set validated to 0")
        return self.model.networks[0].cpu().eval()

    def _augment(self, inputs: Tensor) -> Tensor:
        if inputs.dim() == 4 and (most := int(self.params.get("shift", 0))) > 0:
            inputs = shifted(inputs, most)
        if inputs.dim() == 4 and self.params.get("mirror", False):
            inputs = mirrored(inputs)
        return inputs

    def _latency(self, model: nn.Module) -> float:
        """Return the latency of one network for one row, in milliseconds."""
        row = torch.zeros(1, *self.rows.task.inputs, device=self.device)
        return latency(row)(self.model.networks[0])


def parameter_count(params: Mapping[str, Any]) -> int:
    """Return the number of trainable parameters of the delivered network, without training: for `derived` in a sweep.

    Raises:
        ArchitectureError: No network can be built from the parameters.
    """
    with torch.device("meta"):  # allocates no weights
        return int(parameters(designed(params, read_task(Path(params["data"]).parent))))


def flops(params: Mapping[str, Any]) -> int:
    """Return the floating-point operations of the delivered network for one row, by `costs`: for `derived` in a sweep.

    Raises:
        ArchitectureError: No network can be built from the parameters.
    """
    arguments = architecture(params, read_task(Path(params["data"]).parent))
    return costs(arguments.pop("value"), **arguments, batch=2).flops


class FoldNetworks(nn.Module):
    """Networks with equal architectures and different weights. Inputs are indices of rows, (batch, networks).

    Args:
        networks: The networks.
        inputs: All rows, (rows, ...). They aren't part of the state.
        channels: For images, the mean and scale of each channel, (2, channels); otherwise None.
        augment: Augmentation of a training batch.
    """

    def __init__(
        self,
        networks: Sequence[nn.Module],
        inputs: Tensor,
        channels: Tensor | None,
        augment: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self._inputs = inputs
        self._channels = None if channels is None else channels[:, :, None, None]
        self._augment = augment

    def forward(self, rows: Tensor) -> list[Tensor]:
        """Return each network's outputs, (batch, outputs), for the rows of its column."""
        return [
            network(self._augment(self._read(chosen)))
            for network, chosen in zip(self.networks, rows.unbind(1), strict=True)
        ]

    @torch.no_grad()
    def predict(self, number: int, rows: Tensor, batch: int = 1024) -> Tensor:
        """Return one network's outputs for some rows, in evaluation mode, (rows, outputs)."""
        self.eval()
        network = self.networks[number]
        return torch.cat([network(self._read(chunk)) for chunk in torch.split(rows, batch)])

    def _read(self, rows: Tensor) -> Tensor:
        chosen = self._inputs[rows].float()
        return chosen if self._channels is None else (chosen - self._channels[0]) / self._channels[1]


class TargetScale:
    """Standardization of targets by the mean and standard deviation of each network's training targets.

    Args:
        targets: Targets of all rows, (rows,).
        rows: Indices of rows, (rows of an epoch, networks).
    """

    def __init__(self, targets: Tensor, rows: Tensor) -> None:
        selected = targets.double()[rows]
        self.mean = selected.mean(0)
        deviation = selected.std(0, correction=0)
        self.deviation = torch.where(deviation > 0, deviation, 1.0)

    def scaled(self, number: int, targets: Tensor) -> Tensor:
        """Return targets standardized for network `number`."""
        return ((targets.double() - self.mean[number]) / self.deviation[number]).float()

    def in_units(self, number: int, outputs: Tensor) -> Tensor:
        """Return the outputs of network `number` converted to the targets' unit, float64."""
        return outputs.double() * self.deviation[number] + self.mean[number]


def fold_loss(
    targets: Tensor, rows: Tensor, *, classes: int | None, weighted: bool, smoothing: float, absolute: bool
) -> Callable[[list[Tensor], Tensor], Tensor]:
    """Return the loss of all networks: its value is the mean, but each network gets the gradient of its own loss.

    Args:
        targets: Targets of all rows.
        rows: Indices of the rows that each network trains on, (rows of an epoch, networks).
        classes: Number of classes; None for numbers.
        weighted: Give all classes the same weight, by their frequencies in a network's training rows.
        smoothing: Label smoothing (Szegedy et al., CVPR 2016, section 7).
        absolute: For numbers, use the Huber loss (1964) with threshold 1 instead of the squared error.
    """
    single: Callable[[int, Tensor, Tensor], Tensor]
    if classes is None:
        scale = TargetScale(targets, rows)
        error = functional.smooth_l1_loss if absolute else functional.mse_loss

        def single(number: int, outputs: Tensor, own_rows: Tensor) -> Tensor:
            return error(outputs[:, 0], scale.scaled(number, targets[own_rows]))

    else:
        weights: list[Tensor | None] = [None] * rows.shape[1]
        if weighted:
            counts = [torch.bincount(targets[own_rows], minlength=classes) for own_rows in rows.unbind(1)]
            weights = [count.sum() / (classes * count.clamp(min=1)).float() for count in counts]

        def single(number: int, outputs: Tensor, own_rows: Tensor) -> Tensor:
            return functional.cross_entropy(outputs, targets[own_rows], weights[number], label_smoothing=smoothing)

    def loss(outputs: list[Tensor], chosen: Tensor) -> Tensor:
        losses = torch.stack(
            [
                single(n, output, own_rows)
                for n, (output, own_rows) in enumerate(zip(outputs, chosen.unbind(1), strict=True))
            ]
        )
        # With the mean, gradients would be divided by the number of networks; the last fit trains only one network.
        return losses.sum() - (losses.sum() - losses.mean()).detach()

    return loss


def architecture(params: Mapping[str, Any], task: PredictionTask) -> dict[str, Any]:
    """Return the arguments of `architectures.network`, and of `standalone`, for a task.

    Rows: `depth` (2; 0 is a linear model) dense layers of `width` (128) features with `activation` ("relu"), `norm`
    ("none", "batch", "layer") and `dropout` (0.0). `residual` (False) adds each layer's input to its output, except in
    the first layer. `embedding` is "none" or "periodic", with `deviation` (0.1).

    Images: `stages` (2) with a pooling layer between them. A stage has `blocks` (1) of the kind `block` ("conv",
    "residual" or "separable") with kernel size `kernel` (3). The first stage has `channels` (32), and each further
    stage twice as many. The output is pooled to `side` (2) pixels for the last layer, after `dropout` (0.0).
    """
    body = _rows(params) if len(task.inputs) == 1 else _images(params)
    return {"value": body[0], "inputs": task.inputs, "outputs": task.outputs, "stem": body[1], "head": body[2]}


def designed(params: Mapping[str, Any], task: PredictionTask) -> nn.Module:
    """Return the network of a configuration.

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


def shifted(images: Tensor, most: int) -> Tensor:
    """Return images shifted at random by up to `most` pixels along each axis; border pixels are repeated.

    Args:
        images: (rows, channels, height, width).
        most: Maximum shift in pixels.
    """
    rows, _, height, width = images.shape
    moved = torch.randint(-most, most + 1, (2, rows, 1), device=images.device)
    down = (torch.arange(height, device=images.device) + moved[0]).clamp(0, height - 1)
    right = (torch.arange(width, device=images.device) + moved[1]).clamp(0, width - 1)
    index = torch.arange(rows, device=images.device)[:, None, None]
    return images[index, :, down[:, :, None], right[:, None, :]].permute(0, 3, 1, 2)


def mirrored(images: Tensor) -> Tensor:
    """Return images, each mirrored horizontally with probability 1/2."""
    swap = torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5
    return torch.where(swap, images.flip(3), images)
