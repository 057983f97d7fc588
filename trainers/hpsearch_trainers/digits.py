"""Train a small network on scikit-learn's handwritten digits (1,797 images of 8 x 8 pixels).

An iteration is one epoch of SGD with momentum. Every parameter has a default, so that a search names only
what it searches over. All that is random comes from torch's global generator, which is seeded for the trial.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_trainers.trial import TrialLike

__all__ = ["MLP", "Digits", "cnn", "digits", "mlp"]

_SPLIT_SEED = 0
"""The split is the same for every trial of every sweep, so that their accuracies compare."""


@dataclass(frozen=True, slots=True)
class Digits:
    """Images with pixels from 0 to 1, shaped (n, 1, 8, 8), and their classes; never written to."""

    images: Tensor
    """1,437 to train on."""
    labels: Tensor
    validation_images: Tensor
    """360, of all classes alike."""
    validation_labels: Tensor


@lru_cache(maxsize=1)
def digits() -> Digits:
    """Load and split the digits, once per process."""
    pixels, classes = load_digits(return_X_y=True)
    train, validation, train_classes, validation_classes = train_test_split(
        pixels, classes, test_size=360, stratify=classes, random_state=_SPLIT_SEED
    )
    return Digits(
        _images(train),
        torch.from_numpy(train_classes),
        _images(validation),
        torch.from_numpy(validation_classes),
    )


def mlp(trial: TrialLike) -> None:
    """Train a perceptron with one hidden layer.

    Parameters: `hidden` (128), `lr` (0.1), `momentum` (0.9), `dropout` (0.0), `weight_decay` (0.0),
    `batch_size` (32). Reports `accuracy` on the validation images, and the training `loss`.
    """
    _train(trial, _mlp(trial.params))


def cnn(trial: TrialLike) -> None:
    """Train a network of two convolutions.

    Parameters: `channels` (16), `lr` (0.1), `momentum` (0.9), `dropout` (0.0), `weight_decay` (0.0),
    `batch_size` (32). Reports `accuracy` on the validation images, and the training `loss`.
    """
    channels = int(trial.params.get("channels", 16))
    model = nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels, 2 * channels, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(float(trial.params.get("dropout", 0.0))),
        nn.Linear(2 * channels * 2 * 2, 10),
    )
    _train(trial, model)


class MLP:
    """The perceptron of `mlp` as a class, which a worker may keep between two segments."""

    def __init__(self, trial: TrialLike) -> None:
        self._training = _Training(_mlp(trial.params), trial.params)

    def step(self) -> dict[str, float]:
        """Run one epoch and give its metrics."""
        return self._training.epoch()

    def state_dict(self) -> dict[str, Any]:
        """Give what continues the training."""
        return self._training.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from such a state."""
        self._training.load(state)


class _Training:
    """A model, its optimizer, and the loop over the images."""

    def __init__(self, model: nn.Module, params: Mapping[str, Any]) -> None:
        self._model = model
        self._batch_size = int(params.get("batch_size", 32))
        self._digits = digits()
        self._optimizer = torch.optim.SGD(
            model.parameters(),
            lr=float(params.get("lr", 0.1)),
            momentum=float(params.get("momentum", 0.9)),
            weight_decay=float(params.get("weight_decay", 0.0)),
            fused=True,  # one call for all parameters: on models this small, half of a step's time otherwise
        )

    def epoch(self) -> dict[str, float]:
        """Train on every image once, and validate."""
        self._model.train()
        images, labels = self._digits.images, self._digits.labels
        total = torch.zeros(())
        for batch in torch.split(torch.randperm(len(labels)), self._batch_size):
            loss = functional.cross_entropy(self._model(images[batch]), labels[batch])
            self._optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            total += loss.detach() * len(batch)
        return {"accuracy": self._accuracy(), "loss": float(total) / len(labels)}

    def state(self) -> dict[str, Any]:
        """Give what continues the training: tensors and plain containers."""
        return {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from such a state."""
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])

    @torch.no_grad()
    def _accuracy(self) -> float:
        self._model.eval()
        predicted = self._model(self._digits.validation_images).argmax(dim=1)
        return float((predicted == self._digits.validation_labels).float().mean())


def _train(trial: TrialLike, model: nn.Module) -> None:
    training = _Training(model, trial.params)
    if trial.checkpoint is not None:
        training.load(trial.checkpoint)
    for _ in trial.iterations():
        trial.report(training.epoch(), checkpoint=training.state)


def _mlp(params: Mapping[str, Any]) -> nn.Module:
    hidden = int(params.get("hidden", 128))
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, hidden),
        nn.ReLU(),
        nn.Dropout(float(params.get("dropout", 0.0))),
        nn.Linear(hidden, 10),
    )


def _images(pixels: Any) -> Tensor:
    return torch.from_numpy(pixels).float().div(16).reshape(-1, 1, 8, 8)
