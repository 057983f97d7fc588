"""Score the delivered files on the test rows, which weren't used before."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import joblib
import numpy as np
from numpy.typing import NDArray

from hpsearch.design.folder import DesignFolder
from hpsearch.design.last_fit import Best
from hpsearch.design.prepared_rows import PredictionTask, PreparedRows, read_rows
from hpsearch.design.report import DesignReport, TestScore
from hpsearch.design.request import DesignRequest
from hpsearch.design.scores import SCORES, interval, score
from hpsearch.design.trees import KINDS, Trees, predicted
from hpsearch.errors import DesignError

__all__ = ["predictions_of", "tested"]

_LINES = 5
"""Last letters of the output of a failed predict.py."""


_SAME = 1e-3
"""Tolerance between two ways to compute a prediction, of a probability or of the targets' standard deviation."""


def tested(
    place: DesignFolder,
    record: Mapping[str, Any],
    best: Best,
    cost: Mapping[str, float],
    trees: Trees | None,
    request: DesignRequest,
    expected: NDArray[np.float64],
) -> DesignReport:
    """Score the delivered network, the trees and a baseline on the test rows.

    The network's score is that of the delivered predict.py on the original test rows. `expected` are the trained
    network's own predictions, for a check.

    Raises:
        DesignError: The delivered files don't predict.
    """
    goal, search, test = record["goal"], read_rows(place.search_rows), read_rows(place.test_rows)
    given = predictions_of(place, test.task, len(test.targets))
    _check_same(place, given, expected)
    guess, guess_is = _baseline(goal, search, len(test.targets))
    of_trees = None
    if trees is not None:
        of_trees = _scored(goal, predicted(joblib.load(place.trees), test.inputs, test.task), test)
    wins = trees is not None and _better(goal, trees.validation, best.validation)
    over = [
        f"{name} {cost[name]:g} is above {bound:g}"
        for name, bound in request.limits.items()
        if name in cost and cost[name] > bound
    ]
    return DesignReport(
        goal=goal,
        better=SCORES[goal].goal,
        test=_scored(goal, given, test),
        all_scores={
            one.name: score(one.name, given, test.targets) for one in SCORES.values() if one.kind == test.task.kind
        },
        baseline=_scored(goal, guess, test),
        baseline_is=guess_is,
        trees=of_trees,
        trees_are="" if trees is None else trees.kind,
        validation=best.validation,
        trees_validation=None if trees is None else trees.validation,
        trees_win=wins,
        trial=best.trial,
        trials=best.trials,
        epochs=best.epochs,
        params=dict(best.params),
        cost=dict(cost),
        broken=tuple(over),
        search_rows=len(search.targets),
        test_rows=len(test.targets),
        notes=tuple(f"there was no time for {kind}" for kind in (KINDS if trees is None else trees.left_out)),
        seconds=0.0,
    )


def predictions_of(place: DesignFolder, task: PredictionTask, rows: int) -> NDArray[np.float64]:
    """Run the delivered predict.py on the original test rows, in a process of its own, without hpsearch.

    Returns:
        Probabilities (rows, classes) in the order of the task's classes, or numbers (rows,).

    Raises:
        DesignError: It fails, or doesn't print a prediction for each row.
    """
    script = place.model / "predict.py"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    out = place.data / "test_predictions.csv"
    done = subprocess.run(
        [sys.executable, str(script), str(place.raw_test_rows), "--output", str(out)],
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise DesignError(
            f"{script}: must predict the test rows, but ended with {done.returncode}: "
            + "\n".join(done.stderr.strip().splitlines()[-_LINES:])
        )
    with out.open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    if len(found) != rows:
        raise DesignError(f"{script}: must give a prediction for each of the {rows} test rows, got {len(found)}")
    if task.kind == "numbers":
        return np.array([float(row["prediction"]) for row in found])
    return np.array([[float(row[f"probability of {label}"]) for label in task.classes] for row in found])


def _check_same(place: DesignFolder, predictions: NDArray[np.float64], expected: NDArray[np.float64]) -> None:
    """Check that the delivered files match the trained network."""
    scale = 1.0 if predictions.ndim > 1 else float(expected.std()) or 1.0
    worst = float(np.abs(predictions - expected).max()) / scale
    if not worst <= _SAME:
        raise DesignError(
            f"{place.model}: predict.py must say of the test rows what the trained network says, but differs "
            f"by {worst:.3g} where at most {_SAME:g} is rounding: was the folder changed meanwhile?"
        )


def _scored(goal: str, predictions: NDArray[np.float64], rows: PreparedRows) -> TestScore:
    return TestScore(score(goal, predictions, rows.targets), interval(goal, predictions, rows.targets))


def _baseline(goal: str, search: PreparedRows, rows: int) -> tuple[NDArray[np.float64], str]:
    """Predict from the search rows' targets alone."""
    if search.task.kind == "numbers":
        middle = np.median if goal == "mae" else np.mean
        told = "the median" if goal == "mae" else "the mean"
        return np.full(rows, float(middle(search.targets.astype(np.float64)))), f"{told} of the other rows"
    shares = np.bincount(search.targets.astype(np.int64), minlength=search.task.outputs) / len(search.targets)
    told = "the classes' shares" if goal == "log_loss" else f"always {search.task.classes[int(shares.argmax())]}"
    return np.tile(shares, (rows, 1)), told


def _better(goal: str, one: float, other: float) -> bool:
    return one > other if SCORES[goal].goal == "maximize" else one < other
