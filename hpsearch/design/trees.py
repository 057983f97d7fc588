"""scikit-learn's trees with default settings on the same rows: what a network has to beat."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)

from hpsearch_trainers.folds import assign_folds
from hpsearch_trainers.prepared_rows import PreparedRows, Task
from hpsearch_trainers.scores import SCORES, score

__all__ = ["KINDS", "Trees", "best_trees", "fitted_trees", "predicted", "read_trees"]

_SAMPLE = 2000
"""Rows whose time says how long all will take."""

_MAKERS: Mapping[str, Mapping[str, Any]] = {
    "random forest": {"classes": RandomForestClassifier, "numbers": RandomForestRegressor},
    "gradient boosting": {"classes": HistGradientBoostingClassifier, "numbers": HistGradientBoostingRegressor},
}

KINDS = tuple(_MAKERS)
"""What there is."""


@dataclass(frozen=True, slots=True)
class Trees:
    """The kind that does best on the validated rows."""

    kind: str
    scores: Mapping[str, float]
    """On the validated rows, by kind: of the goal, each row predicted by trees that didn't see it."""
    left_out: tuple[str, ...] = ()
    """Kinds for which there was no time."""

    @property
    def validation(self) -> float:
        """The score of the best kind."""
        return self.scores[self.kind]

    def to_json(self) -> dict[str, Any]:
        """Give it as JSON."""
        return asdict(self)


def read_trees(given: Mapping[str, Any] | None) -> Trees | None:
    """Read back what `to_json` gave."""
    return None if given is None else Trees(given["kind"], given["scores"], tuple(given["left_out"]))


def best_trees(
    rows: PreparedRows, goal: str, params: Mapping[str, Any], seconds: float, jobs: int, path: Path
) -> Trees | None:
    """Validate both kinds on the folds that networks are validated on; write the better one, trained on all rows.

    Args:
        rows: To search with.
        goal: A name of `SCORES`.
        params: Of the trainable: `folds`, `validated` and `split_seed`.
        seconds: For all of it; a kind that would take more than half of them is left out.
        jobs: Cores.
        path: Where the better one is written.

    Returns:
        None where there was no time for either.
    """
    folds = assign_folds(rows.inputs, rows.targets, params["folds"], params["split_seed"])
    scores: dict[str, float] = {}
    left_out = []
    for kind in KINDS:
        found = _validated(kind, rows, goal, folds, params["validated"], jobs, seconds / 2)
        if found is None:
            left_out.append(kind)
        else:
            scores[kind] = found
    if not scores:
        return None
    best = (max if SCORES[goal].goal == "maximize" else min)(scores, key=lambda kind: scores[kind])
    path.parent.mkdir(exist_ok=True)
    joblib.dump(fitted_trees(best, rows, np.arange(len(rows.targets)), jobs), path, compress=3)
    return Trees(best, scores, tuple(left_out))


def predicted(model: Any, inputs: NDArray[np.generic], task: Task) -> NDArray[np.float64]:
    """Give probabilities (rows, classes), in the order of the task's classes, or numbers (rows,)."""
    flat = inputs.reshape(len(inputs), -1)
    if task.kind == "numbers":
        return np.asarray(model.predict(flat), np.float64)
    given = np.zeros((len(flat), task.outputs))
    given[:, model.classes_] = model.predict_proba(flat)  # a class that it never saw has no column
    return given


def _validated(
    kind: str, rows: PreparedRows, goal: str, folds: NDArray[np.int64], validated: int, jobs: int, seconds: float
) -> float | None:
    """Give the score of the validated rows; None where it would take more seconds, the fit on all rows included."""
    if _estimate(kind, rows, jobs) * (validated + 1) > seconds:
        return None
    began = time.monotonic()
    own, given = [], []
    for number in range(validated):
        own.append(np.flatnonzero(folds == number))
        model = fitted_trees(kind, rows, np.flatnonzero(folds != number), jobs)
        given.append(predicted(model, rows.inputs[own[-1]], rows.task))
        each = (time.monotonic() - began) / (number + 1)
        if each * (validated + 1) > seconds:
            return None
    return score(goal, np.concatenate(given), rows.targets[np.concatenate(own)])


def fitted_trees(kind: str, rows: PreparedRows, chosen: NDArray[np.int64], jobs: int) -> Any:
    """Train trees of a kind on chosen rows, with default settings."""
    more = {"n_jobs": jobs} if kind == "random forest" else {}
    model = _MAKERS[kind][rows.task.kind](random_state=0, **more)
    return model.fit(rows.inputs.reshape(len(rows.inputs), -1)[chosen], rows.targets[chosen])


def _estimate(kind: str, rows: PreparedRows, jobs: int) -> float:
    """Give the seconds of one fit; 0 where there are few rows, which takes a moment."""
    count = len(rows.targets)
    if count <= 2 * _SAMPLE:
        return 0.0
    began = time.monotonic()
    fitted_trees(kind, rows, np.linspace(0, count - 1, _SAMPLE).astype(np.int64), jobs)
    return (time.monotonic() - began) * count / _SAMPLE
