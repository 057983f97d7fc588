"""Sweeps that end because they have what they came for: at a target, or out of patience."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

import hpsearch
from hpsearch.events import Ended, Failed, Finished, Lost
from hpsearch.schedulers.asha import ASHA
from hpsearch.schedulers.halving import Hyperband
from hpsearch.sweep.parts import Limits, Metric
from hpsearch.tables.status import status_text
from hpsearch.tables.trials import rows_to_csv
from hpsearch.task import Message, Progress, Task
from hpsearch.trial import Report, TrialState
from tests.hpsearch.support.merged import merged
from tests.hpsearch.support.scripted import (
    ScriptedBackend,
    cut_at_next_report,
    done,
    events_of,
    failed,
    gone,
    of_kind,
    run_scripted,
    sweep_of,
    timed_out,
)
from tests.hpsearch.support.simulations import LENGTH, Bowl, Walk, bowl

FLAT: dict[str, Any] = {"early_terminate": None, "max_iter": 4}

OPTIONS: dict[str, Any] = {
    "parameters": {"x": hpsearch.Uniform(-1.0, 1.0)},
    "metric": "loss",
    "limits": {"max_failures": "none"},
    "observers": [],
    "progress": False,
}


def target(value: float | None, **more: Any) -> Metric:
    return Metric("loss", target=value, **more)


def live(task: Task, iteration: int, loss: float) -> Progress:
    """A running task told of an iteration."""
    trial, attempt = task.key
    return Progress(trial, attempt, (Report(trial, iteration, {"loss": loss}, 1.0),))


class Scripted(ScriptedBackend):
    """Reports each iteration by itself; the cut comes at the one after the report, as on a backend that is told late.

    Args:
        loss: By trial and iteration.
        ends: In place of the result, by trial and attempt: the ends of attempts that told of their first iteration.
    """

    def __init__(self, loss: Any, workers: int = 1, ends: Any = None) -> None:
        super().__init__(self._step, workers)
        self.loss = loss
        self.ends = ends or {}
        self.at: dict[tuple[int, int], int] = {}

    def _step(self, task: Task) -> Sequence[Message]:
        trial, _ = task.key
        at = self.at[task.key] = self.at.get(task.key, task.segment.start) + 1
        told: list[Message] = [live(task, at, self.loss(trial, at))]
        if at == task.segment.end:
            return [*told, done(task, loss=self.loss)]
        if task.key in self.ends:
            return [*told, self.ends[task.key](task)]
        if self.is_cut(task):
            return [*told, done(task, at=at, cut=True, loss=self.loss)]
        self.running.append(task)
        return told


def test_it_ends_at_a_live_report_and_what_runs_is_cut_at_its_next(tmp_path):
    path = tmp_path / "s"
    backend = Scripted(lambda trial, at: 0.5 if (trial, at) == (3, 2) else 1.0, workers=3)
    study = run_scripted(path, sweep_of(**FLAT, run_cap=50, metric=target(0.5)), backend)
    assert study.state == "target"
    reason = "trial 3 reached loss 0.5 at iteration 2 (metric.target: 0.5); it went on, and its value is 1.0 since"
    assert events_of(path)[-1] == Ended("target", reason)
    assert reason in status_text(study, None)
    assert len(study.trials) <= 7
    cut = [event for event in of_kind(path, Finished) if event.cut]
    assert 3 in {event.trial for event in cut}
    assert all(event.checkpoint is not None for event in cut)
    assert all(row.state in (TrialState.WAITING, TrialState.COMPLETE) for row in study.trials)


def test_scope_best_keeps_the_value_of_a_trial_that_was_told_to_end_too_late(tmp_path):
    backend = Scripted(lambda trial, at: 0.5 if (trial, at) == (3, 2) else 1.0, workers=3)
    study = run_scripted(tmp_path / "s", sweep_of(**FLAT, run_cap=50, metric=target(0.5, scope="best")), backend)
    assert (study.state, study.best_trial.number, study.best_value) == ("target", 3, 0.5)
    assert study.message == "trial 3 reached loss 0.5 at iteration 2 (metric.target: 0.5)"


@pytest.mark.parametrize("end", [gone, failed, timed_out])
def test_a_report_that_is_lost_before_it_counts_ends_nothing(tmp_path, end):
    """Trial 1 is as good once, and never again: by then the sweep was about to end."""
    path = tmp_path / "s"
    told: list[int] = []

    def loss(trial: int, at: int) -> float:
        if (trial, at) == (1, 1) and len(told) < 1:
            told.append(at)
            return 0.5
        return 1.0

    backend = Scripted(loss, workers=2, ends={(1, 1): end})
    study = run_scripted(path, sweep_of(**FLAT, run_cap=6, metric=target(0.5)), backend)
    assert (study.state, study.message) == ("finished", "")
    assert of_kind(path, Lost if end is gone else Failed)
    assert sum(row.state is TrialState.COMPLETE for row in study.trials) == (6 if end is gone else 5)
    assert of_kind(path, Ended) == [Ended("finished")]


def test_a_trial_that_kills_its_worker_wherever_it_reaches_the_target_has_failed_in_the_end(tmp_path):
    backend = Scripted(
        lambda trial, at: 0.5 if trial == 1 else 1.0, workers=2, ends={(1, attempt): gone for attempt in range(1, 9)}
    )
    study = run_scripted(tmp_path / "s", sweep_of(**FLAT, run_cap=4, metric=target(0.5)), backend)
    assert study.state == "finished"
    assert [row.number for row in study.trials if row.state is TrialState.FAILED] == [1]


def test_a_resumed_study_knows_that_it_has_enough_and_starts_nothing(tmp_path):
    path, sweep = tmp_path / "s", sweep_of(**FLAT, run_cap=9, metric=target(0.5))
    first = run_scripted(path, sweep, ScriptedBackend(lambda task: [done(task, loss=lambda trial, _: 2.0 - trial)]))
    assert (first.state, len(first.trials)) == ("target", 3)
    unused = ScriptedBackend(lambda task: [done(task)])
    for asked in (None, sweep):
        again = run_scripted(path, asked, unused)
        assert (again.state, again.message, again.trials) == (first.state, first.message, first.trials)
    assert (unused.tasks, unused.closed) == ([], [])  # it was never opened


@pytest.mark.parametrize("other", [None, -2.5])
def test_a_study_that_reached_its_target_goes_on_with_another_or_with_none(tmp_path, other):
    def backend() -> ScriptedBackend:
        return ScriptedBackend(lambda task: [done(task, loss=lambda trial, _: 2.0 - trial)])

    sweeps = [sweep_of(**FLAT, run_cap=9, metric=target(value)) for value in (0.5, other, None)]
    studies = [run_scripted(tmp_path / "s", sweep, backend()) for sweep in sweeps]
    assert [study.state for study in studies] == ["target", "finished" if other is None else "target", "finished"]
    assert studies[2].trials == run_scripted(tmp_path / "whole", sweeps[2], backend()).trials


def test_a_target_that_was_reached_already_ends_a_study_that_was_run_without(tmp_path):
    path = tmp_path / "s"
    sweep = sweep_of(**FLAT, run_cap=9, limits=Limits(max_time=3.0))

    def answer(task: Task) -> Sequence[Message]:
        backend.clock += 1.0
        return cut_at_next_report(backend, task)

    backend = ScriptedBackend(answer)
    assert run_scripted(path, sweep, backend).state == "max_time"
    reached = min(row.value for row in hpsearch.load(path).trials if row.value is not None)
    begun = len(backend.tasks)
    study = run_scripted(path, sweep_of(**FLAT, run_cap=9, metric=target(reached)), backend)
    assert (study.state, len(backend.tasks)) == ("target", begun)


def test_no_rung_is_decided_by_trials_that_were_cut_for_the_target(tmp_path):
    """Whoever was cut runs its segment on, and the whole sweep is the one that had no target."""

    def backend() -> Scripted:
        return Scripted(lambda trial, at: (trial * 7 % 5 + 1) / at, workers=3)

    metrics = [target(value) for value in (1.5, 1.0, 0.5, 0.3, None)]
    studies = [run_scripted(tmp_path / "s", sweep_of(metric=metric), backend()) for metric in metrics]
    assert [study.state for study in studies] == ["target"] * 4 + ["finished"]
    whole = run_scripted(tmp_path / "whole", sweep_of(), backend())
    assert rows_to_csv(studies[-1].trials, ["x"]) == rows_to_csv(whole.trials, ["x"])
    assert [row.reason for row in studies[-1].trials] == [row.reason for row in whole.trials]


def test_patience_ends_it_when_so_many_trials_gave_nothing_better_and_goes_on_with_more(tmp_path):
    losses = [5.0, 3.0, 4.0, 4.0, 2.0, 2.0, 2.0, 2.0, 1.0]

    def run(patience: int | None) -> tuple[str, int]:
        backend = ScriptedBackend(lambda task: [done(task, loss=lambda trial, _: losses[trial])])
        study = run_scripted(tmp_path / "s", sweep_of(**FLAT, run_cap=9, limits=Limits(patience=patience)), backend)
        return study.state, len(study.trials)

    assert run(2) == ("patience", 4)
    assert run(2) == ("patience", 4)
    assert run(3) == ("patience", 8)
    assert hpsearch.load(tmp_path / "s").message == (
        "3 trials in a row ended without a better loss than 2.0 of trial 4 (limits.patience: 3)"
    )
    assert run(None) == ("finished", 9)


def test_a_trial_that_still_ran_and_gave_a_better_value_lets_the_sweep_go_on(tmp_path):
    path = tmp_path / "s"
    held: list[Task] = []

    def answer(task: Task) -> Sequence[Message]:
        trial = task.segment.trial
        if trial == 1 and not backend.is_cut(task):
            held.append(task)
            backend.running.append(task)
            return ()
        return [done(task, loss=lambda trial, _: 0.5 if trial == 1 else 1.0)]

    backend = ScriptedBackend(answer, workers=2)
    study = run_scripted(path, sweep_of(**FLAT, run_cap=12, limits=Limits(patience=4)), backend)
    assert held  # it was told to end when four others had given nothing better, and came to its end by itself
    assert study.state == "patience"
    assert "trials in a row ended without a better loss than 0.5 of trial 1" in study.message
    assert len(of_kind(path, Ended)) == 1


def simulated(trainable: Any, directory: Any = ":memory:", **options: Any) -> hpsearch.Study:
    given = merged({"resources": {"workers": 3}}, OPTIONS, options)
    return hpsearch.search(trainable, backend="simulated", directory=directory, **given)


SEARCHES: dict[str, dict[str, Any]] = {
    "flat": {"max_iter": LENGTH, "run_cap": 40},
    "to the end": {"run_cap": 40},
    "hyperband": {"early_terminate": Hyperband(max_iter=LENGTH, eta=2), "run_cap": 40},
    "asha": {"early_terminate": ASHA(max_iter=LENGTH), "run_cap": 40},
}


def reached_in(study: hpsearch.Study, goal: float) -> list[tuple[int, int]]:
    return [(trial, at) for trial, curve in study.curves().items() for at, value in curve if value <= goal]


@pytest.mark.some_cases(3)
@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("workers", [1, 4])
def test_the_trial_that_reaches_it_ends_at_that_very_report(tmp_path, name, workers):
    options = SEARCHES[name] | {"resources": {"workers": workers}}
    values = [value for curve in simulated(Bowl, **options).curves().values() for _, value in curve]
    goal = sorted(value for value in values if not math.isnan(value))[len(values) // 20]
    study = simulated(Bowl, **options, metric={"target": goal})
    on_disk = simulated(Bowl, tmp_path / "s", **options, metric={"target": goal})
    assert (study.state, study.message) == (on_disk.state, on_disk.message)
    assert study.state == "target"
    reached = reached_in(study, goal)
    assert reached
    for trial, at in reached:
        assert study.trials[trial].iterations == at
        value = study.trials[trial].value
        assert value is not None
        assert value <= goal
    assert study.best_value <= goal


def test_inline_and_simulated_sweeps_end_alike(tmp_path):
    options = SEARCHES["flat"] | {"resources": {"workers": 1}, "metric": {"target": 0.3}}
    trained = hpsearch.search(bowl, backend="inline", directory=tmp_path / "trained", **merged(OPTIONS, options))
    played = simulated(Bowl, **options)
    assert trained.state == played.state == "target"
    assert trained.message == played.message
    assert rows_to_csv(trained.trials, ["x"]) == rows_to_csv(played.trials, ["x"])


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("flat", marks=pytest.mark.exhaustive),
        "hyperband",
        pytest.param("asha", marks=pytest.mark.exhaustive),
    ],
)
def test_patience_counts_the_same_however_often_it_was_interrupted(tmp_path, name):
    options = SEARCHES[name] | {"resources": {"workers": 1}, "limits": {"patience": 12}}
    whole = simulated(Walk, tmp_path / "whole", **options)
    time, runs = 10.0, 1
    study = simulated(Walk, tmp_path / "s", **merged(options, {"limits": {"max_time": time}}))
    while study.state == "max_time":
        time += 17.0
        study = simulated(Walk, tmp_path / "s", **merged(options, {"limits": {"max_time": time}}))
        runs += 1
    assert runs > 3
    assert (study.state, study.message) == (whole.state, whole.message)
    assert rows_to_csv(study.trials, ["x"]) == rows_to_csv(whole.trials, ["x"])
    assert name == "asha" or study.state == "patience"
