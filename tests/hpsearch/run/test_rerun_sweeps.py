"""What a rerun takes over of a study's sweep, and what it doesn't."""

from __future__ import annotations

import hpsearch
from hpsearch.run.rerunning import plan_rerun


def test_a_rerun_runs_all_of_a_search_that_learned_and_ended_at_its_target(tmp_path):
    def train(trial):
        for _ in trial.iterations():
            trial.report({"loss": (trial.params["x"] - 0.3) ** 2})

    former = hpsearch.search(
        train,
        parameters={"x": hpsearch.Uniform(0.0, 1.0)},
        metric="loss",
        metric_target=1e-3,
        method="tpe",
        suggestions={"ahead": False, "startup": 3},
        patience=40,
        max_iter=2,
        run_cap=60,
        directory=tmp_path / "study",
        backend="inline",
        tensorboard=False,
        progress=False,
    )
    assert former.state == "target"
    sweep = plan_rerun(former, 2, 3).sweep
    assert (sweep.method, sweep.search, sweep.metric.target) == ("random", hpsearch.Search(), None)
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
