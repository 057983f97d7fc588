"""What a rerun takes over of a study's sweep, and what it doesn't."""

from __future__ import annotations

import pytest

import hpsearch
from hpsearch.run.rerunning import plan_rerun
from tests.hpsearch.support.scripted import sweep_of


@pytest.mark.exhaustive
def test_a_rerun_runs_all_of_a_search_that_learned_and_ended_at_its_target(tmp_path):
    def train(trial):
        for _ in trial.iterations():
            trial.report({"loss": (trial.params["x"] - 0.3) ** 2})

    former = hpsearch.search(
        train,
        parameters={"x": hpsearch.Uniform(0.0, 1.0)},
        metric={"name": "loss", "target": 1e-3},
        method="tpe",
        search={"ahead": False, "startup": 3},
        limits={"patience": 40},
        max_iter=2,
        run_cap=60,
        directory=tmp_path / "study",
        backend="inline",
        observers=[],
        progress=False,
    )
    assert former.state == "target"
    sweep = plan_rerun(former, 2, 3).sweep
    assert (sweep.method, sweep.search, sweep.objective.goals[0].target) == ("random", hpsearch.Search(), None)
    assert sweep.limits.patience is None
    hpsearch.rerun(
        former.directory,
        top=2,
        seeds=3,
        trainable=train,
        directory=tmp_path / "rerun",
        backend="inline",
        progress=False,
    )
    study = hpsearch.load(tmp_path / "rerun")
    assert (study.state, len(study.trials)) == ("finished", 6)


def _asked(directory) -> hpsearch.Study:
    """Ask for three trials of a sweep that doesn't say what runs them, and tell them."""
    with hpsearch.AskTell(
        sweep_of(trainable=None, early_terminate=None, max_iter=1, run_cap=3), directory=directory
    ) as lab:
        while (trial := lab.ask()) is not None:
            lab.tell(trial, {"loss": float(trial.number)})
    return hpsearch.load(directory)


def test_a_rerun_of_trials_that_ran_elsewhere_is_refused_before_anything_is_made(tmp_path):
    former = _asked(tmp_path / "study")
    with pytest.raises(hpsearch.SweepError, match=r"used with ask and tell.*hpsearch\.rerun\('.*study', trainable="):
        hpsearch.rerun(former.directory, directory=tmp_path / "rerun", backend="inline", progress=False)
    assert not (tmp_path / "rerun").exists()


def test_trials_that_ran_elsewhere_run_again_by_what_is_given_in_python(tmp_path):
    def train(trial):
        for _ in trial.iterations():
            trial.report({"loss": 2.0})

    former = _asked(tmp_path / "study")
    rerun = hpsearch.rerun(
        former.directory,
        top=2,
        seeds=2,
        trainable=train,
        directory=tmp_path / "rerun",
        backend="inline",
        observers=[],
        progress=False,
    )
    assert [(one.trial, one.mean) for one in rerun.configurations] == [(0, 2.0), (1, 2.0)]
