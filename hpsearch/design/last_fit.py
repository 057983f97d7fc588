"""The last fit: the best trial's network is trained on all search rows, written, and scored on the test rows."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import joblib
import numpy as np
import torch
from numpy.typing import NDArray

from hpsearch.design.data_sets.predict import tree_outputs
from hpsearch.design.designed_network import DesignedNetwork, architecture
from hpsearch.design.folder import DesignFolder, DesignRequest
from hpsearch.design.pace import one_thread, seeded
from hpsearch.design.prepared_rows import PredictionTask, PreparedRows, read_rows
from hpsearch.design.report import DesignReport, TestScore
from hpsearch.design.scores import SCORES, interval, score
from hpsearch.design.trees import KINDS, Trees
from hpsearch.errors import DesignError
from hpsearch.results.study import Study
from hpsearch.trial import TrialRow
from hpsearch_trainers.architectures import standalone
from hpsearch_trainers.measures import latency, parameters


@dataclass(frozen=True, slots=True)
class Best:
    """Result of the search."""

    trial: int
    params: Mapping[str, Any]
    """Nested params, as the trainable gets them."""
    epochs: int
    """Number of epochs of the last fit: those after which the best score was reported, minus `left_out`."""
    left_out: int
    """Number of epochs for which the last fit has no time."""
    validation: float
    trials: int
    """Number of trials with a score."""


def best_of(study: Study) -> Best | None:
    """Return the best trial that satisfies all bounds; None if there is none.

    If no trial satisfies the bound on `fit_seconds`, and the nearest trial violates no other bound, that trial is
    returned with as many epochs as the bound allows, since less training is better than no network.
    """
    row = study.leaders[0]
    params, reached = study.sweep.parameters.nest(row.params), row.value_iteration
    epochs = reached if row.feasible else min(reached, _epochs_in_time(study, row))
    if epochs < 1:
        return None
    count = sum(trial.score is not None for trial in study.trials)
    return Best(row.number, params, epochs, reached - epochs, row.values[0], count)


def _epochs_in_time(study: Study, row: TrialRow) -> int:
    """Return the number of epochs within the bound on the time of the last fit; 0 if another bound is violated."""
    broken = study.sweep.objective.broken(row.score)
    bounds = [bound for bound in study.sweep.objective.constraints if str(bound) in broken]
    if any(bound.metric != "fit_seconds" or not bound.most for bound in bounds):
        return 0
    each = study.metrics_of(row)["fit_seconds"] / float(row.params["epochs"])
    return int(min(bound.bound for bound in bounds) / each)


def deliver(best: Best, folder: Path, seed: int) -> tuple[dict[str, float], DesignedNetwork]:
    """Train the best trial's network on all search rows for `best.epochs`, and write network.py and weights.pt.

    Except for the rows, training is the same as in the trial: parameters, schedule and number of threads.

    Args:
        best: Result of the search.
        folder: The folder to write to.
        seed: Seed of the weights and of the order of rows.

    Returns:
        The network's `parameters` and `latency_ms` for one row; and the trainable that trained it.

    Raises:
        DesignError: The weights contain NaN or infinity, or the files can't be written.
    """
    params = {**best.params, "validated": 0, "latency": False}
    with one_thread(), seeded(seed):
        training = DesignedNetwork(SimpleNamespace(params=params, seed=seed))
        for _ in range(best.epochs):
            training.step()
        network = training.delivered()
        cost = {
            "parameters": parameters(network),
            "latency_ms": latency(torch.zeros(1, *training.rows.task.inputs))(network),
        }
    state = network.state_dict()
    if not all(bool(torch.isfinite(value).all()) for value in state.values()):
        raise DesignError("the last fit must give weights that are numbers, got NaN or infinity: try another --seed")
    arguments = architecture(params, training.rows.task)
    try:
        folder.mkdir(exist_ok=True)
        (folder / "network.py").write_text(standalone(arguments.pop("value"), **arguments), encoding="utf-8")
        torch.save(state, folder / "weights.new")
        (folder / "weights.new").replace(folder / "weights.pt")
    except OSError as error:
        raise DesignError(f"{folder}: must be writable, got: {error}") from error
    return cost, training


_LINES = 5
"""Number of the last lines of a failed predict.py's output that are shown."""


_SAME = 1e-3
"""Tolerance between two computations of a prediction: absolute for a probability, otherwise as a share of the
predictions' standard deviation."""


def tested(
    folder: DesignFolder,
    record: Mapping[str, Any],
    best: Best,
    cost: Mapping[str, float],
    trees: Trees | None,
    request: DesignRequest,
    expected: NDArray[np.float64],
) -> DesignReport:
    """Score the delivered network, the trees and a baseline on the test rows.

    The network's score is computed from the predictions of the delivered predict.py for the original test rows. They
    are checked against `expected`, the predictions of the trained network.

    Raises:
        DesignError: The delivered predict.py fails, or its predictions differ.
    """
    goal, search, test = record["goal"], read_rows(folder.search_rows), read_rows(folder.test_rows)
    predictions = _delivered_predictions(folder, test.task, len(test.targets))
    _check_same(folder, predictions, expected)
    guess, guess_is = _baseline(goal, search, len(test.targets))
    of_trees = None
    if trees is not None:
        of_trees = _scored(goal, tree_outputs(joblib.load(folder.trees), test.inputs, len(test.task.classes)), test)
    wins = trees is not None and _better(goal, trees.validation, best.validation)
    over = [
        f"{name} {cost[name]:g} is above {bound:g}"
        for name, bound in request.limits.items()
        if name in cost and cost[name] > bound
    ]
    return DesignReport(
        goal=goal,
        better=SCORES[goal].goal,
        test=_scored(goal, predictions, test),
        all_scores={
            score_kind.name: score(score_kind.name, predictions, test.targets)
            for score_kind in SCORES.values()
            if score_kind.kind == test.task.kind
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


def _delivered_predictions(folder: DesignFolder, task: PredictionTask, rows: int) -> NDArray[np.float64]:
    """Run the delivered predict.py on the original test rows in a separate process, without hpsearch.

    Returns:
        Probabilities (rows, classes) in the order of the task's classes, or numbers (rows,).

    Raises:
        DesignError: predict.py fails, or doesn't print a prediction for each row.
    """
    script = folder.model / "predict.py"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    out = folder.data / "test_predictions.csv"
    process = subprocess.run(
        [sys.executable, str(script), str(folder.raw_test_rows), "--output", str(out)],
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode != 0:
        raise DesignError(
            f"{script}: must predict the test rows, but ended with {process.returncode}: "
            + "\n".join(process.stderr.strip().splitlines()[-_LINES:])
        )
    with out.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    if len(lines) != rows:
        raise DesignError(f"{script}: must give a prediction for each of the {rows} test rows, got {len(lines)}")
    if task.kind == "numbers":
        return np.array([float(row["prediction"]) for row in lines])
    return np.array([[float(row[f"probability of {label}"]) for label in task.classes] for row in lines])


def _check_same(folder: DesignFolder, predictions: NDArray[np.float64], expected: NDArray[np.float64]) -> None:
    """Check that the delivered files predict the same as the trained network."""
    scale = 1.0 if predictions.ndim > 1 else float(expected.std()) or 1.0
    worst = float(np.abs(predictions - expected).max()) / scale
    if not worst <= _SAME:
        raise DesignError(
            f"{folder.model}: predict.py must say of the test rows what the trained network says, but differs "
            f"by {worst:.3g} where at most {_SAME:g} is rounding: was the folder changed meanwhile?"
        )


def _scored(goal: str, predictions: NDArray[np.float64], rows: PreparedRows) -> TestScore:
    return TestScore(score(goal, predictions, rows.targets), interval(goal, predictions, rows.targets))


def _baseline(goal: str, search: PreparedRows, rows: int) -> tuple[NDArray[np.float64], str]:
    """Return constant predictions from the search rows' targets, and their description."""
    if search.task.kind == "numbers":
        middle = np.median if goal == "mae" else np.mean
        name = "the median" if goal == "mae" else "the mean"
        return np.full(rows, float(middle(search.targets.astype(np.float64)))), f"{name} of the other rows"
    shares = np.bincount(search.targets.astype(np.int64), minlength=search.task.outputs) / len(search.targets)
    name = "the classes' shares" if goal == "log_loss" else f"always {search.task.classes[int(shares.argmax())]}"
    return np.tile(shares, (rows, 1)), name


def _better(goal: str, value: float, other: float) -> bool:
    return value > other if SCORES[goal].goal == "maximize" else value < other
