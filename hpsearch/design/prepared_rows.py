"""Rows from `data_sets.prepare`: `search.npz`, or `test.npz`, with `task.json` in the same folder."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hpsearch_comm.errors import ConfigurationError

__all__ = ["PredictionTask", "PreparedRows", "read_rows", "read_task"]


@dataclass(frozen=True, slots=True)
class PredictionTask:
    """The inputs and targets of a prediction."""

    kind: Literal["classes", "numbers"]
    classes: tuple[str, ...]
    """Their labels, in the order of a network's outputs; none of numbers."""
    inputs: tuple[int, ...]
    """The shape of a row."""

    target_mean: float = 0.0
    """For numbers: the prediction for the delivered network's output 0, and its increase for output 1."""
    target_scale: float = 1.0
    channels: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """For images the mean and scale of each channel, by which pixels are standardized."""

    @property
    def outputs(self) -> int:
        """Number of a network's outputs for a row."""
        return len(self.classes) if self.kind == "classes" else 1


@dataclass(frozen=True, eq=False, slots=True)
class PreparedRows:
    """Rows to train on, or to test with; never written to."""

    task: PredictionTask
    inputs: NDArray[np.generic]
    """float32 (rows, features), or uint8 or float32 (rows, channels, height, width)."""
    targets: NDArray[np.generic]
    """int64 classes, or float32 numbers; (rows,)."""


@lru_cache(maxsize=4)
def read_task(folder: Path) -> PredictionTask:
    """Read `task.json`.

    Raises:
        ConfigurationError: It is missing or invalid.
    """
    path = folder / "task.json"
    try:
        given: Any = json.loads(path.read_text(encoding="utf-8"))
        kind, inputs = given["kind"], tuple(int(side) for side in given["inputs"])
        classes = tuple(given["classes"] or ())
        unit = float(given.get("target_mean", 0.0)), float(given.get("target_scale", 1.0))
        means, scales = given.get("channel_means"), given.get("channel_scales")
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
    """Read `search.npz` or `test.npz`, with `task.json` in the same folder, once per process.

    Raises:
        ConfigurationError: It can't be read, or the two don't match.
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
