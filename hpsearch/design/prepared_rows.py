"""Rows written by `data_sets.prepare`, and the validation folds."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpsearch_comm.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class PredictionTask:
    """The inputs and targets of a prediction."""

    kind: Literal["classes", "numbers"]
    classes: tuple[str, ...]
    """Labels of the classes, in the order of a network's outputs; empty for numbers."""
    inputs: tuple[int, ...]
    """Shape of a row."""

    target_mean: float = 0.0
    """For numbers: the prediction is `target_mean + target_scale * output` of the delivered network."""
    target_scale: float = 1.0
    channels: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """For images: mean and scale of each channel, by which pixels are standardized."""

    @property
    def outputs(self) -> int:
        """Number of a network's outputs for a row."""
        return len(self.classes) if self.kind == "classes" else 1


@dataclass(frozen=True, eq=False, slots=True)
class PreparedRows:
    """Training or test rows. The arrays must not be modified."""

    task: PredictionTask
    inputs: NDArray[np.generic]
    """float32 (rows, features), or uint8 or float32 (rows, channels, height, width)."""
    targets: NDArray[np.generic]
    """int64 classes, or float32 numbers; (rows,)."""


@lru_cache(maxsize=4)
def read_task(folder: Path) -> PredictionTask:
    """Read `task.json`.

    Raises:
        ConfigurationError: The file is missing or invalid.
    """
    path = folder / "task.json"
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        kind, inputs = content["kind"], tuple(int(side) for side in content["inputs"])
        classes = tuple(content["classes"] or ())
        unit = float(content.get("target_mean", 0.0)), float(content.get("target_scale", 1.0))
        means, scales = content.get("channel_means"), content.get("channel_scales")
        channels = None if means is None else (tuple(map(float, means)), tuple(map(float, scales)))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{path}: must say what is predicted, as `hpsearch design` leaves it, got {type(error).__name__}: {error}"
        ) from error
    if kind not in ("classes", "numbers") or (kind == "classes") != (len(classes) > 1) or len(inputs) not in (1, 3):
        raise ConfigurationError(
            f"{path}: must say kind numbers, or classes with at least two labels, and inputs of one side or three; got "
            f"kind {kind!r}, {len(classes)} classes and inputs {list(inputs)}"
        )
    return PredictionTask(kind, classes, inputs, *unit, channels)


@lru_cache(maxsize=2)
def read_rows(path: Path) -> PreparedRows:
    """Read `search.npz` or `test.npz`, and `task.json` in the same folder; cached per process.

    Raises:
        ConfigurationError: A file can't be read, or the two don't match.
    """
    task = read_task(path.parent)
    try:
        with np.load(path) as arrays:
            inputs, targets = arrays["inputs"], arrays["targets"]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise ConfigurationError(
            f"{path}: must hold rows as `inputs` and `targets`, as `hpsearch design` leaves them (in the folder where "
            f"it was told to; moved away they aren't found), got {type(error).__name__}: {error}"
        ) from error
    if inputs.shape != (len(targets), *task.inputs) or targets.ndim != 1 or len(targets) == 0:
        raise ConfigurationError(
            f"{path}: must hold rows of the shape {list(task.inputs)} and a target for each, got inputs "
            f"{list(inputs.shape)} and targets {list(targets.shape)}"
        )
    if not np.isfinite(inputs).all() or not np.isfinite(targets).all():
        raise ConfigurationError(f"{path}: must hold numbers alone, got NaN or infinity")
    if task.kind == "classes" and (
        targets.dtype.kind not in "iu" or not 0 <= targets.min() <= targets.max() < task.outputs
    ):
        raise ConfigurationError(
            f"{path}: must hold classes from 0 to {task.outputs - 1}, got {targets.dtype} from {targets.min()} to "
            f"{targets.max()}"
        )
    return PreparedRows(task, inputs, targets)


def assign_folds(inputs: NDArray[np.generic], targets: NDArray[np.generic], folds: int, seed: int) -> NDArray[np.int64]:
    """Assign rows to folds, stratified by class, or by size for numbers.

    Rows with equal inputs are in the same fold. Otherwise a network would be validated on its training rows.

    Args:
        inputs: (rows, ...).
        targets: (rows,), classes or numbers.
        folds: Number of folds, at least 2.
        seed: Seed of the assignment.

    Returns:
        The fold of each row, (rows,).

    Raises:
        ConfigurationError: There are more folds than distinct rows.
    """
    first: dict[bytes, int] = {}
    group = np.array([first.setdefault(row.tobytes(), len(first)) for row in np.ascontiguousarray(inputs)], np.int64)
    if folds < 2:
        raise ConfigurationError(f"folds must be at least 2, got {folds}")
    if len(first) < folds:
        raise ConfigurationError(f"there must be at least {folds} different rows for {folds} folds, got {len(first)}")
    _, first_rows = np.unique(group, return_index=True)
    chance = np.random.default_rng(seed)
    order = np.lexsort((chance.random(len(first_rows)), targets[first_rows]))
    dealt = np.concatenate([chance.permutation(folds) for _ in range(-(-len(first_rows) // folds))])[: len(first_rows)]
    fold_of_group = np.empty(len(first_rows), np.int64)
    fold_of_group[order] = dealt
    return fold_of_group[group]


def training_rows(folds: NDArray[np.int64], validated: int, seed: int) -> Tensor:
    """Return the rows that each network trains on in an epoch.

    Network i doesn't train on the rows of fold i. If folds are unequal, networks with fewer rows train on some rows
    twice in an epoch, so that all networks have the same number of steps.

    Args:
        folds: The fold of each row, (rows,).
        validated: Number of networks; 0: one network, which trains on all rows.
        seed: Seed of the repeated rows.

    Returns:
        Indices of rows, int64, (rows of an epoch, networks).

    Raises:
        ConfigurationError: A network would have no rows to train on.
    """
    chance = np.random.default_rng(seed)
    if validated == 0:
        return torch.arange(len(folds))[:, None]
    by_fold = [np.flatnonzero(folds != number) for number in range(validated)]
    if min(len(rows) for rows in by_fold) < 1:
        raise ConfigurationError("each network needs a row to train on, got a fold that holds all rows")
    most = max(len(rows) for rows in by_fold)
    filled = [np.concatenate([rows, chance.choice(rows, most - len(rows))]) for rows in by_fold]
    return torch.from_numpy(np.stack([chance.permutation(rows) for rows in filled], 1))


def even_batch(rows: int, requested: int) -> int:
    """Return a batch size near the requested one with which the last batch has more than a few rows.

    Batch normalization can't train on one row, and trains poorly on a few.
    """
    batch = -(-rows // max(1, round(rows / requested)))
    while batch < rows and 0 < rows % batch < min(8, batch):
        batch += 1
    return batch
