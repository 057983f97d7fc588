"""A study of several goals, or of one with a constraint on outcomes, in which all sorts of things happen."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import hpsearch
from hpsearch.schedulers.halving import SuccessiveHalving
from hpsearch.sweep.parts import Metric
from hpsearch.trainable.running_trial import RunningTrial
from tests.hpsearch.support.merged import merged

SPACE: dict[str, Any] = {"x": hpsearch.Uniform(0.0, 1.0), "kind": ["a", "b", "c", 1]}

TWO_GOALS: dict[str, Any] = {"metric": [Metric("loss"), Metric("acc", "maximize")]}
JOINT: dict[str, Any] = {**TWO_GOALS, "outcome_constraints": ["ms <= 20", "loss >= -5"]}
CONSTRAINED: dict[str, Any] = {"metric": Metric("loss"), "outcome_constraints": ["ms <= 20"]}


def several(trial: RunningTrial) -> None:
    """Report two goals and a time: trial 2 fails, 3 has NaN, 4 and 5 have infinities, 6 breaks the constraint."""
    x, number = trial.params["x"], trial.number
    for iteration in trial.iterations():
        if number == 2:
            raise ValueError("no luck")
        acc = math.nan if number == 3 else -math.inf if number == 5 else x - 1 / iteration
        ms = math.inf if number == 4 else 30.0 if number == 6 else 40 * x / iteration
        trial.report({"loss": x + 1 / iteration, "acc": acc, "ms": ms})


def study_of_goals(directory: Path, **given: Any) -> hpsearch.Study:
    """Run nine trials by halving, of which the best get nine iterations."""
    return hpsearch.search(
        several,
        **merged(
            {
                "parameters": SPACE,
                "early_terminate": SuccessiveHalving(9, min_iter=1, trials=9),
                "directory": directory,
                "backend": "inline",
                "observers": [],
                "progress": False,
            },
            given,
        ),
    )
