"""Scores of predictions. They are computed over all rows, not averaged over batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Score:
    """A score of predictions."""

    name: str
    kind: Literal["classes", "numbers"]
    goal: Literal["minimize", "maximize"]
    of: Callable[[Array, Array], float]
    """Returns the score of predictions, probabilities (rows, classes) or numbers (rows,), for true targets, (rows,)."""
    weighted: bool = False
    """Whether rare classes count as much as common ones, so that training should give them more weight."""


def _accuracy(predictions: Array, true: Array) -> float:
    return float(np.mean(predictions.argmax(1) == true))


def _balanced_accuracy(predictions: Array, true: Array) -> float:
    """Return the mean recall over the classes in `true`."""
    hit = predictions.argmax(1) == true
    return float(np.mean([hit[true == label].mean() for label in np.unique(true)]))


def _f1(predictions: Array, true: Array) -> float:
    """Return the mean F1, 2 TP / (2 TP + FP + FN), over the classes in `true` or in the predicted classes."""
    guess = predictions.argmax(1)
    scores = []
    for label in np.union1d(true, guess):
        both = np.sum((guess == label) & (true == label))
        scores.append(2 * both / (np.sum(guess == label) + np.sum(true == label)))
    return float(np.mean(scores))


def _log_loss(predictions: Array, true: Array) -> float:
    """Return the mean negative logarithm of the true class's probability, which is clipped to at least 1e-15."""
    true_probabilities = predictions.astype(np.float64)[np.arange(len(true)), true.astype(np.int64)]
    return float(-np.mean(np.log(np.clip(true_probabilities, 1e-15, 1.0))))


def _errors(predictions: Array, true: Array) -> NDArray[np.float64]:
    return predictions.astype(np.float64) - true.astype(np.float64)


def _rmse(predictions: Array, true: Array) -> float:
    return float(np.sqrt(np.mean(_errors(predictions, true) ** 2)))


def _mae(predictions: Array, true: Array) -> float:
    return float(np.mean(np.abs(_errors(predictions, true))))


def _r2(predictions: Array, true: Array) -> float:
    """Return 1 - (squared error) / (squared error of the mean target); NaN if all targets are equal."""
    numbers = true.astype(np.float64)
    spread = float(np.sum((numbers - numbers.mean()) ** 2))
    return 1.0 - float(np.sum(_errors(predictions, true) ** 2)) / spread if spread > 0 else float("nan")


SCORES: Mapping[str, Score] = {
    known.name: known
    for known in (
        Score("accuracy", "classes", "maximize", _accuracy),
        Score("balanced_accuracy", "classes", "maximize", _balanced_accuracy, weighted=True),
        Score("f1", "classes", "maximize", _f1, weighted=True),
        Score("log_loss", "classes", "minimize", _log_loss),
        Score("rmse", "numbers", "minimize", _rmse),
        Score("mae", "numbers", "minimize", _mae),
        Score("r2", "numbers", "maximize", _r2),
    )
}
"""Scores by name."""


def score(name: str, predictions: Array, true: Array) -> float:
    """Return one score; NaN if a prediction isn't finite, since `argmax` would convert NaN to a class.

    Args:
        name: One of `SCORES`.
        predictions: Probabilities of classes, (rows, classes), or numbers, (rows,).
        true: True classes or numbers, (rows,).
    """
    if len(predictions) != len(true) or len(true) == 0:
        raise ValueError(f"needs a prediction for each row, and a row, got {len(predictions)} for {len(true)} rows")
    return SCORES[name].of(predictions, true) if np.isfinite(predictions).all() else float("nan")


_RESAMPLES = 2000


def interval(name: str, predictions: NDArray[np.generic], true: NDArray[np.generic]) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of a score, over the sampling of rows.

    Accuracy's is Wilson's (1927); others are percentiles of 2,000 bootstrap samples (Efron 1979) with a fixed seed.

    Args:
        name: Name of the score.
        predictions: Probabilities (rows, classes), or numbers (rows,).
        true: True targets, (rows,).

    Returns:
        The interval; None if there is none, as for a single row or NaN predictions.
    """
    value, rows = score(name, predictions, true), len(true)
    if not math.isfinite(value) or rows < 2:
        return None
    if name == "accuracy":
        low, high = binomtest(round(value * rows), rows).proportion_ci(method="wilson")
        return min(value, float(low)), max(value, float(high))  # despite rounding
    chance = np.random.default_rng(0)
    drawn = [chance.integers(rows, size=rows) for _ in range(_RESAMPLES)]
    scores = np.array([score(name, predictions[rows_of], true[rows_of]) for rows_of in drawn])
    scores = scores[np.isfinite(scores)]  # a sample with equal numbers has no r2
    if len(scores) < _RESAMPLES // 2:
        return None
    low, high = np.percentile(scores, [2.5, 97.5])
    return float(low), float(high)
