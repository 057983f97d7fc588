"""Train a small network on scikit-learn's handwritten digits (1,797 images of 8 x 8 pixels).

Every parameter has a default, so a sweep needs to list only the parameters that it searches over. `digits.npz` has the
images: the test set of E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning
Repository, 1998, https://doi.org/10.24432/C50P49, CC BY 4.0.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_trainers.parts import Parts
from hpsearch_trainers.trainer import Trainer

_VALIDATION = 360
"""Number of validation images."""


@dataclass(frozen=True, slots=True)
class Digits:
    """Images with pixels from 0 to 1, of shape (n, 1, 8, 8), and their classes; read-only."""

    images: Tensor
    """1,437 training images."""
    labels: Tensor
    validation_images: Tensor
    """360 images, stratified by class."""
    validation_labels: Tensor


@lru_cache(maxsize=4)
def digits(split: int = 0) -> Digits:
    """Return the digits, split into training and validation images. They are loaded once per process.

    Args:
        split: The seed of the split. Use the same seed for trials whose accuracies are compared.
    """
    with np.load(Path(__file__).with_name("digits.npz")) as arrays:
        pixels, classes = arrays["pixels"], arrays["classes"].astype(np.int64)
    training, validation = _stratified_split(classes, _VALIDATION, split)
    return Digits(
        _images(pixels[training]),
        torch.from_numpy(classes[training]),
        _images(pixels[validation]),
        torch.from_numpy(classes[validation]),
    )


class _Classifier(Trainer):
    """Base class of both networks. Reports `accuracy` on the validation images and the metrics of every `Trainer`.

    Parameters: `lr` (0.1), `momentum` (0.9), `dropout` (0.0), `weight_decay` (0.0), `batch_size` (32), `split` (0, the
    seed of the split into training and validation images) and `seed` (of the initial weights and of the training's
    randomness; by default each trial has another seed). With a common `seed`, trials differ only in their other
    parameters.
    """

    @abstractmethod
    def network(self, params: Mapping[str, Any]) -> nn.Module:
        """Return the network."""

    def build(self, params: Mapping[str, Any]) -> Parts:
        """Return the parts; the optimizer is SGD with momentum."""
        data = digits(int(params.get("split", 0)))
        seed = None if params.get("seed") is None else int(params["seed"])
        if seed is not None:
            torch.manual_seed(seed)
        model = self.network(params)
        optimizer = torch.optim.SGD(
            model.parameters(),
            lr=float(params.get("lr", 0.1)),
            momentum=float(params.get("momentum", 0.9)),
            weight_decay=float(params.get("weight_decay", 0.0)),
            fused=True,  # one call for all parameters; without it, models this small need twice the time per step
        )
        return Parts(
            model,
            optimizer,
            functional.cross_entropy,
            train=(data.images, data.labels),
            validation=(data.validation_images, data.validation_labels),
            metrics={"accuracy": correct},
            batch_size=int(params.get("batch_size", 32)),
            seed=seed,
        )


class MLP(_Classifier):
    """A perceptron with one hidden layer; parameter `hidden` (128)."""

    def network(self, params: Mapping[str, Any]) -> nn.Module:
        """Return the network."""
        hidden = int(params.get("hidden", 128))
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, hidden),
            nn.ReLU(),
            nn.Dropout(float(params.get("dropout", 0.0))),
            nn.Linear(hidden, 10),
        )


class CNN(_Classifier):
    """Two convolutions; parameter `channels` (16)."""

    def network(self, params: Mapping[str, Any]) -> nn.Module:
        """Return the network."""
        channels = int(params.get("channels", 16))
        return nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(channels, 2 * channels, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(float(params.get("dropout", 0.0))),
            nn.Linear(2 * channels * 2 * 2, 10),
        )


mlp, cnn = MLP, CNN
"""Former names, for existing sweep files."""


def correct(output: Tensor, target: Tensor) -> Tensor:
    """Return 1 for each row whose most likely class is the true one, else 0."""
    return (output.argmax(1) == target).float()


def _images(pixels: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(pixels).float().div(16).reshape(-1, 1, 8, 8)


def _stratified_split(classes: NDArray[np.int64], held_out: int, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the rows of both parts, as scikit-learn's `train_test_split(stratify=classes)` splits them.

    Args:
        classes: Class of each row.
        held_out: Number of rows of the second part.
        seed: The `random_state`.
    """
    generator = np.random.RandomState(seed)
    counts = np.bincount(classes)
    first_counts = _proportional(counts, len(classes) - held_out, generator)
    second_counts = _proportional(counts - first_counts, held_out, generator)
    first: list[NDArray[Any]] = []
    second: list[NDArray[Any]] = []
    for number, (of_first, of_second) in enumerate(zip(first_counts, second_counts, strict=True)):
        rows = np.flatnonzero(classes == number)
        rows = rows[generator.permutation(len(rows))]
        first.append(rows[:of_first])
        second.append(rows[of_first : of_first + of_second])
    return generator.permutation(np.concatenate(first)), generator.permutation(np.concatenate(second))


def _proportional(counts: NDArray[np.int64], total: int, generator: np.random.RandomState) -> NDArray[np.int64]:
    """Divide `total` in proportion to counts. The largest remainders are rounded up, equal ones at random."""
    exact = counts / counts.sum() * total
    whole: NDArray[np.int64] = np.floor(exact).astype(np.int64)
    remainders = exact - whole
    missing = int(total - whole.sum())
    for remainder in np.unique(remainders)[::-1]:
        if missing <= 0:
            break
        (equal,) = np.nonzero(remainders == remainder)
        rounded_up = generator.choice(equal, size=min(len(equal), missing), replace=False)
        whole[rounded_up] += 1
        missing -= len(rounded_up)
    return whole
