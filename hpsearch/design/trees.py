"""scikit-learn's trees with default settings on the same rows, as a baseline for the network."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

from hpsearch.design.data_sets.predict import tree_outputs
from hpsearch.design.prepared_rows import PreparedRows, assign_folds
from hpsearch.design.scores import SCORES, score

_SAMPLE = 2000
"""Number of rows of the timed fit, from which the time for all rows is estimated."""

_MAKERS: Mapping[str, Mapping[str, Any]] = {
    "random forest": {"classes": RandomForestClassifier, "numbers": RandomForestRegressor},
    "gradient boosting": {"classes": HistGradientBoostingClassifier, "numbers": HistGradientBoostingRegressor},
}

_COUNTED = {"random forest": "n_estimators", "gradient boosting": "max_iter"}
"""Name of the argument for the number of trees."""

_TREES = 100
"""Default number of trees."""

KINDS = tuple(_MAKERS)
"""The kinds of trees."""


@dataclass(frozen=True, slots=True)
class Trees:
    """The kind of trees that is best on the validated rows, and the scores of all kinds."""

    kind: str
    scores: Mapping[str, float]
    """Kind to its score on the validated rows; each row is predicted by trees that weren't trained on it."""
    left_out: Sequence[str] = ()
    """Kinds for which there was no time."""

    @property
    def validation(self) -> float:
        """The score of the best kind."""
        return self.scores[self.kind]


def best_trees(
    rows: PreparedRows, goal: str, params: Mapping[str, Any], seconds: float, jobs: int, path: Path
) -> Trees | None:
    """Validate both kinds of trees on the same folds as networks; write the better kind, trained on all rows.

    Args:
        rows: The search rows.
        goal: A name in `SCORES`.
        params: The trainable's `folds`, `validated` and `split_seed`.
        seconds: Time for both kinds; a kind that would need more than half of it is left out.
        jobs: Number of cores.
        path: Path of the file for the better kind.

    Returns:
        The results; None if there was no time for either kind.
    """
    folds = assign_folds(rows.inputs, rows.targets, params["folds"], params["split_seed"])
    scores: dict[str, float] = {}
    left_out = []
    for kind in KINDS:
        score_validated = _validated(kind, rows, goal, folds, params["validated"], jobs, seconds / 2)
        if score_validated is None:
            left_out.append(kind)
        else:
            scores[kind] = score_validated
    if not scores:
        return None
    best = (max if SCORES[goal].goal == "maximize" else min)(scores, key=lambda kind: scores[kind])
    path.parent.mkdir(exist_ok=True)
    joblib.dump(fitted_trees(best, rows, np.arange(len(rows.targets)), jobs), path, compress=3)
    return Trees(best, scores, left_out)


def _validated(
    kind: str, rows: PreparedRows, goal: str, folds: NDArray[np.int64], validated: int, jobs: int, seconds: float
) -> float | None:
    """Return the score on the validated rows; None if that and the fit on all rows would need more than `seconds`."""
    if _estimate(kind, rows, jobs) * (validated + 1) > seconds:
        return None
    began = time.monotonic()
    validation_rows, predictions = [], []
    for number in range(validated):
        validation_rows.append(np.flatnonzero(folds == number))
        model = fitted_trees(kind, rows, np.flatnonzero(folds != number), jobs)
        predictions.append(tree_outputs(model, rows.inputs[validation_rows[-1]], len(rows.task.classes)))
        each = (time.monotonic() - began) / (number + 1)
        if each * (validated + 1) > seconds:
            return None
    return score(goal, np.concatenate(predictions), rows.targets[np.concatenate(validation_rows)])


def fitted_trees(kind: str, rows: PreparedRows, chosen: NDArray[np.int64], jobs: int, **settings: Any) -> Any:
    """Train trees of a kind on selected rows, with default settings except `settings`."""
    if kind == "random forest":
        settings["n_jobs"] = jobs
    model = _MAKERS[kind][rows.task.kind](random_state=0, **settings)
    return model.fit(rows.inputs.reshape(len(rows.inputs), -1)[chosen], rows.targets[chosen])


def _estimate(kind: str, rows: PreparedRows, jobs: int) -> float:
    """Return the estimated seconds of a fit, measured with a tenth of the trees on a sample of rows."""
    chosen = np.linspace(0, len(rows.targets) - 1, min(len(rows.targets), _SAMPLE)).astype(np.int64)
    if rows.task.kind == "classes":  # the sample must contain every class, also rare ones
        chosen = np.union1d(chosen, np.unique(rows.targets, return_index=True)[1])
    seconds = []
    for _ in range(2):  # the first fit includes initializations
        began = time.monotonic()
        fitted_trees(kind, rows, chosen, jobs, **{_COUNTED[kind]: _TREES // 10})
        seconds.append(time.monotonic() - began)
    return 10 * min(seconds) * len(rows.targets) / len(chosen)
