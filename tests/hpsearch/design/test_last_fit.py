"""Which trial the last fit trains anew, and for how many epochs."""

from __future__ import annotations

from pathlib import Path

import pytest

import hpsearch
from hpsearch.design.last_fit import Best, best_of
from hpsearch.results.study import Study


def searched(folder: Path, constraints: list[str], seconds: dict[int, float], reported: int = 3) -> Study:
    """Search with trials by width, that would fit for so many seconds in three epochs."""

    def train(trial):
        width = trial.params["width"]
        for epoch in range(1, reported + 1):
            trial.report({"accuracy": width / 10 + epoch / 100, "fit_seconds": seconds[width]})

    return hpsearch.search(
        train,
        parameters={"parameters": {"width": list(seconds), "epochs": 3}, "outcome_constraints": constraints},
        metric={"name": "accuracy", "goal": "maximize"},
        method="grid",
        max_iter=reported,
        backend="inline",
        directory=folder / "study",
        observers=[],
        progress=False,
    )


@pytest.mark.parametrize(
    ("bound", "seconds", "epochs"),
    [(9.0, {1: 9.0, 2: 30.0}, 3), (6.5, {1: 9.0, 2: 30.0}, 2), (3.0, {2: 30.0, 1: 9.0}, 1), (3.0, {1: 9.0}, 1)],
)
def test_a_trial_that_is_too_slow_has_as_many_epochs_as_keep_the_bound(tmp_path, bound, seconds, epochs):
    best = best_of(searched(tmp_path, [f"fit_seconds <= {bound}"], seconds))
    assert best == Best(
        trial=list(seconds).index(1),
        params={"width": 1, "epochs": 3},
        epochs=epochs,
        left_out=3 - epochs,
        validation=0.13,
        trials=len(seconds),
    )


def test_epochs_that_were_never_reported_are_not_trained(tmp_path):
    best = best_of(searched(tmp_path, ["fit_seconds <= 8.0"], {1: 9.0}, reported=1))
    assert best is not None
    assert (best.epochs, best.left_out) == (1, 0)


@pytest.mark.parametrize(
    "constraints",
    [["fit_seconds <= 2.9"], ["fit_seconds <= 6.5", "accuracy >= 0.9"], ["accuracy >= 0.9"], ["fit_seconds >= 10"]],
)
def test_what_breaks_another_bound_or_has_no_time_for_an_epoch_is_none(tmp_path, constraints):
    assert best_of(searched(tmp_path, constraints, {1: 9.0})) is None
