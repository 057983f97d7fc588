"""Real training under other libraries' loops: cut into segments it gives what it gives uncut, to the bit."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

import hpsearch
from hpsearch.integrations.trial import trial_of_one
from hpsearch.trainable.current import set_current_trial
from tests.hpsearch.support import lightning_trainables, transformers_trainables
from tests.hpsearch.support.doubling import Doubling
from tests.hpsearch.support.merged import merged

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # libraries that import others' deprecated parts

METRICS = {lightning_trainables: "val_loss", transformers_trainables: "eval_loss"}


def search(place: Path, library: Any, early: Any = None, max_iter: int | None = None, **given: Any) -> hpsearch.Study:
    options: dict[str, Any] = {
        "backend": "inline",
        "progress": False,
        "observers": [],
        "limits": {"max_failures": "none"},
    }
    return hpsearch.search(
        library.train,
        parameters=given.pop("parameters", {}),
        method=given.pop("method", "grid"),
        metric=METRICS[library],
        early_terminate=early,
        max_iter=max_iter,
        directory=place,
        **merged(options, given),
    )


def told(study: hpsearch.Study) -> list[list[tuple[int, dict[str, float]]]]:
    curves = study.reports()
    return [[(report.iteration, dict(report.metrics)) for report in curves[trial]] for trial in sorted(curves)]


def output(study: hpsearch.Study) -> str:
    return "".join(path.read_text() for path in sorted(study.directory.glob("trials/*/*/output.log")))


@pytest.mark.exhaustive
@pytest.mark.parametrize("every", [1, 2])
def test_lightning_goes_on_from_each_segment_to_the_bit_whatever_the_schedule(every, tmp_path):
    parameters = {"schedule": lightning_trainables.SCHEDULES, "every": every}
    whole = search(tmp_path / "whole", lightning_trainables, max_iter=5, parameters=parameters)
    cut = search(tmp_path / "cut", lightning_trainables, Doubling(5, trials=3), parameters=parameters)
    assert all(row.state == "complete" and row.iterations == 5 for row in [*whole.trials, *cut.trials])
    assert len(cut.segments()) == 12  # to 1, 2, 4 and 5
    assert told(cut) == told(whole)
    epochs = [metrics["epoch"] for _, metrics in told(cut)[0]]
    assert epochs == [every * iteration - 1 for iteration in range(1, 6)]
    assert output(cut).count("ended finished") == 12  # and not interrupted


@pytest.mark.exhaustive
def test_pytorch_lightning_is_taken_as_well_and_a_training_that_is_too_short_is_refused(tmp_path):
    parameters = {"schedule": "epoch", "library": "pytorch_lightning"}
    study = search(tmp_path / "s", lightning_trainables, max_iter=2, parameters=parameters)
    assert [iteration for iteration, _ in told(study)[0]] == [1, 2]
    with pytest.raises(hpsearch.TrainableError, match=r"Trainer\(max_epochs=2\) must train for 3 epochs or more"):
        search(tmp_path / "t", lightning_trainables, max_iter=3, parameters={"schedule": "epoch", "epochs": 2})


OFTEN = {"eval_strategy": "steps", "eval_steps": 7, "eval_on_start": True, "save_strategy": "steps", "save_steps": 1}


@pytest.mark.exhaustive
@pytest.mark.parametrize("arguments", [{}, OFTEN])
def test_transformers_goes_on_from_each_segment_to_the_bit_at_epochs_and_between(arguments, tmp_path):
    parameters = {"elsewhere": True, **({"arguments": arguments} if arguments else {})}
    whole = search(tmp_path / "whole", transformers_trainables, max_iter=5, parameters=parameters)
    cut = search(tmp_path / "cut", transformers_trainables, Doubling(5, trials=1), parameters=parameters)
    assert all(row.state == "complete" and row.iterations == 5 for row in [*whole.trials, *cut.trials])
    assert len(cut.segments()) == 4
    assert told(cut) == told(whole)
    each = 7 if arguments else 10
    ends = [f"ended {each * iteration}" for iteration in (1, 2, 4, 5)]
    assert [line for line in output(cut).splitlines() if line.startswith("ended")] == ends


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"eval_strategy": "no"}, "each evaluation is an iteration"),
        ({"save_strategy": "best", "metric_for_best_model": "loss"}, "the sweep says what is kept"),
        ({"num_train_epochs": 2}, "must be 3 or more, as the sweep gives this trial 3 iterations"),
    ],
)
def test_transformers_refuses_what_would_end_or_go_on_otherwise_than_the_sweep_has_it(arguments, problem, tmp_path):
    parameters = {"arguments": arguments}
    with pytest.raises(hpsearch.TrainableError, match=problem):
        search(tmp_path / "s", transformers_trainables, max_iter=3, parameters=parameters)


def population(place: Path, library: Any, **fixed: Any) -> list[hpsearch.TrialRow]:
    """Return the forks of a population, which has one generation more than its first."""
    study = search(
        place,
        library,
        hpsearch.PBT(max_iter=4, population=2, interval=2),
        parameters={"lr": hpsearch.LogUniform(1e-3, 1e-1), **fixed},
        method="pbt",
    )
    forks = [row for row in study.trials if row.parent is not None]
    assert forks
    assert all(row.failure is None and row.iterations == 4 for row in forks)
    assert all(row.params["lr"] != study.trials[row.parent or 0].params["lr"] for row in forks)
    return forks


@pytest.mark.parametrize("schedule", ["epoch", pytest.param("step", marks=pytest.mark.exhaustive)])
def test_a_fork_under_lightning_trains_with_its_own_rate(schedule, tmp_path):
    for row in population(tmp_path / "s", lightning_trainables, schedule=schedule):
        assert row.metrics["epoch"] == 3
        if schedule == "epoch":
            assert row.metrics["used"] == pytest.approx(row.params["lr"] * 0.5**4)  # after the epoch
        whole = search(tmp_path / "w", lightning_trainables, max_iter=4, parameters={**row.params})
        assert row.metrics["used"] == whole.trials[0].metrics["used"]


def test_a_fork_under_transformers_trains_with_its_own_rate(tmp_path):
    for row in population(tmp_path / "s", transformers_trainables):
        saved = tmp_path / "s" / str(row.checkpoint)
        optimizer, scheduler = (
            torch.load(next(saved.rglob(f"{name}.pt")), weights_only=True) for name in ("optimizer", "scheduler")
        )
        assert scheduler["base_lrs"][0] == optimizer["param_groups"][0]["initial_lr"] == row.params["lr"]
        rate = row.params["lr"] * (1 - 40 / 60)  # linear, over six epochs of ten steps
        assert optimizer["param_groups"][0]["lr"] == pytest.approx(rate)
        assert all(state["step"] == 40 for state in optimizer["state"].values())


def test_a_child_that_inherits_weights_and_begins_anew_is_refused():
    outer = set_current_trial(cast(hpsearch.RunningTrial, SimpleNamespace(parent=3, start=0, world_size=1)))
    try:
        with pytest.raises(
            hpsearch.TrainableError, match=r"f can't let a trial inherit another one's weights and begin"
        ):
            trial_of_one("f", 1)
    finally:
        set_current_trial(outer)
