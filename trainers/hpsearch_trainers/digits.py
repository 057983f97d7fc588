"""Train a small network on scikit-learn's handwritten digits (1,797 images of 8 x 8 pixels).

Every parameter has a default, so a sweep needs to list only the parameters that it searches over.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_trainers.parts import Parts
from hpsearch_trainers.trainer import Trainer


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
    pixels, classes = load_digits(return_X_y=True)
    train, validation, train_classes, validation_classes = train_test_split(
        pixels, classes, test_size=360, stratify=classes, random_state=split
    )
    return Digits(
        _images(train),
        torch.from_numpy(train_classes),
        _images(validation),
        torch.from_numpy(validation_classes),
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


def _images(pixels: Any) -> Tensor:
    return torch.from_numpy(pixels).float().div(16).reshape(-1, 1, 8, 8)
