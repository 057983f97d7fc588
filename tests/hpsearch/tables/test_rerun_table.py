"""What a rerun's table says of runs that failed, gave odd values, or haven't ended."""

from __future__ import annotations

import math
import statistics

import pytest

import hpsearch
from hpsearch.errors import HpsearchError
from hpsearch.journal.journal import Request
from hpsearch.run.rerunning import plan_rerun
from hpsearch.run.turns import steer_idle
from tests.hpsearch.support.scripted import ScriptedBackend, cut_at_next_report, done, failed, run_scripted, sweep_of


def test_failed_runs_and_nan_are_named_and_in_no_mean(tmp_path):
    former = run_scripted(tmp_path / "s", sweep_of(), ScriptedBackend(lambda task: [done(task)]))
    plan = plan_rerun(former, 2, 3)

    def answer(task):
        values = {0: 1.0, 1: 4.0, 3: 8.0, 4: 2.0, 5: math.nan}
        if task.trial.number == 2:
            return [failed(task)]
        return [done(task, loss=lambda trial, _: values[trial])]

    place = plan.opened(tmp_path / "again")
    told = run_scripted(place.path, None, ScriptedBackend(answer)).rerun
    assert told is not None
    one, other = told.former
    assert (one.values, one.mean, one.std, one.succeeded) == ([1.0, 2.0], 1.5, statistics.stdev([1.0, 2.0]), 2)
    assert (other.values, other.mean, other.min, other.max) == ([4.0, 8.0], 6.0, 4.0, 8.0)
    text = told.text()
    assert f"failed:       run 2 (of trial {one.trial}): ValueError: no\n" in text
    assert f"no value:     run 5 (of trial {other.trial}): loss is NaN\n" in text
    assert f"best by mean: trial {one.trial} of {tmp_path / 's'}, loss 1.5 ± 0.707107 over 2 of 3 runs\n" in text


def test_a_run_that_has_not_ended_counts_nowhere(tmp_path):
    former = run_scripted(tmp_path / "s", sweep_of(), ScriptedBackend(lambda task: [done(task)]))
    plan = plan_rerun(former, 2, 2)
    plan.opened(tmp_path / "again")
    told = hpsearch.load(tmp_path / "again").rerun
    assert told is not None
    assert [(one.mean, one.std, one.min, one.succeeded) for one in told.configurations] == [(None, None, None, 0)] * 2
    assert "not ended:    4 of 4 runs\nbest by mean: none, no run has a value\n" in told.text()
    assert told.dataframe()["mean"].isna().all()
    with pytest.raises(HpsearchError, match="no configuration has a mean of 'loss' yet"):
        _ = told.best


def test_of_a_best_value_on_the_way_the_constraints_are_judged_by_what_was_reported_with_it(tmp_path):
    def train(trial):
        for iteration in trial.iterations():
            trial.report({"loss": abs(iteration - 2) + trial.params["x"], "ms": 10 if iteration == 2 else 30})

    hpsearch.search(
        train,
        parameters={"parameters": {"x": [0, 1]}, "outcome_constraints": ["ms <= 20"]},
        metric={"name": "loss", "scope": "best"},
        method="grid",
        max_iter=3,
        directory=tmp_path / "s",
        backend="inline",
        progress=False,
    )
    again = tmp_path / "again"
    told = hpsearch.rerun(tmp_path / "s", 2, 2, trainable=train, directory=again, backend="inline", progress=False)
    assert [one.mean for one in told.configurations] == [0.0, 1.0]
    assert "break" not in told.text()


def test_what_a_run_reported_before_it_was_cut_counts_nowhere(tmp_path):
    sweep = sweep_of(limits=hpsearch.Limits(max_time=1.0))
    former = run_scripted(tmp_path / "s", sweep, ScriptedBackend(lambda task: [done(task)]))
    plan_rerun(former, 1, 2).opened(tmp_path / "again")

    def answer(task):
        backend.clock += 2.0
        return cut_at_next_report(backend, task)

    backend = ScriptedBackend(answer, workers=2)
    told = run_scripted(tmp_path / "again", None, backend).rerun
    assert told is not None
    (one,) = told.configurations
    assert sorted(row.iterations for row in one.runs) == [1, 9]
    assert all(row.value is not None for row in one.runs)
    assert one.values == [row.value for row in one.runs if row.iterations == 9]
    assert "not ended:    1 of 2 runs\n" in told.text()


def test_a_point_that_was_added_is_no_run_of_a_configuration(tmp_path):
    former = run_scripted(tmp_path / "s", sweep_of(), ScriptedBackend(lambda task: [done(task)]))
    place = plan_rerun(former, 2, 2).opened(tmp_path / "again")
    steer_idle(place, Request(0.0, "add", "ada@there:7", {"points": [{"x": 0.99}]}), "again")

    def answer(task):
        return [done(task, loss=lambda *_: task.trial.params["x"])]

    told = run_scripted(place.path, None, ScriptedBackend(answer)).rerun
    assert told is not None
    assert told.study.trials[0].params == {"x": 0.99}
    points = told.study.sweep.points_to_try
    assert [one.values for one in told.former] == [[points[0]["x"]] * 2, [points[1]["x"]]]
    assert "not ended:    1 of 4 runs\n" in told.text()


@pytest.mark.parametrize(
    ("values", "mean", "std"),
    [
        ([1.0, math.inf], math.inf, math.nan),
        ([-math.inf, math.inf], math.nan, math.nan),
        ([1.7e308, -1.7e308], 0.0, math.inf),
        ([1.0], 1.0, None),
    ],
)
def test_means_and_spreads_of_odd_values(tmp_path, values, mean, std):
    former = run_scripted(tmp_path / "s", sweep_of(), ScriptedBackend(lambda task: [done(task)]))
    plan_rerun(former, 1, len(values)).opened(tmp_path / "again")
    backend = ScriptedBackend(lambda task: [done(task, loss=lambda trial, _: values[trial])])
    told = run_scripted(tmp_path / "again", None, backend).rerun
    assert told is not None
    (one,) = told.configurations
    assert str((one.mean, one.std)) == str((mean, std))
    assert f"{len(values)} of {len(values)}" in told.text()


def test_higher_is_better_where_the_goal_says_so(tmp_path):
    sweep = sweep_of(metric=hpsearch.Metric("loss", "maximize"))
    former = run_scripted(tmp_path / "s", sweep, ScriptedBackend(lambda task: [done(task)]))
    plan_rerun(former, 3, 1).opened(tmp_path / "again")
    backend = ScriptedBackend(lambda task: [done(task, loss=lambda trial, _: float(trial))])
    told = run_scripted(tmp_path / "again", None, backend).rerun
    assert told is not None
    assert [one.mean for one in told.configurations] == [2.0, 1.0, 0.0]
    assert told.former[0].trial == former.best_trial.number
    assert f"not trial {former.best_trial.number}, the best there: place 3 by mean" in told.text()
