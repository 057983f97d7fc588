"""Sweeps whose trials fail: what their attempts cost, when the sweep ends for them, and how they run again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.errors import SweepError, TrainableError
from hpsearch.events import Ended, Failed, Lost, Retried, Started
from hpsearch.results.study import Study, load
from hpsearch.schedulers.halving import Hyperband, SuccessiveHalving
from hpsearch.sweep.parts import Limits
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.trials import rows_to_csv
from hpsearch.task import Message, Task
from hpsearch.trial import TrialState
from tests.hpsearch.support.scripted import (
    ScriptedBackend,
    done,
    events_of,
    failed,
    of_kind,
    run_scripted,
    saved,
    sweep_of,
)

FLAT: dict[str, Any] = {"early_terminate": None, "max_iter": 4}
WAITING, COMPLETE, FAILED = TrialState.WAITING, TrialState.COMPLETE, TrialState.FAILED


def failing(which: Callable[[int], bool], workers: int = 1, seed: int = 0) -> ScriptedBackend:
    """A backend on which some trials raise, whenever they run."""
    return ScriptedBackend(lambda task: [failed(task) if which(task.segment.trial) else done(task)], workers, seed)


def working(workers: int = 1) -> ScriptedBackend:
    return failing(lambda trial: False, workers)


def table(study: Study) -> str:
    return rows_to_csv(study.trials, study.sweep.parameters.names)


def states(study: Study) -> list[TrialState]:
    return [row.state for row in study.trials]


def test_failed_attempts_count_towards_a_trials_time_and_its_timeout(tmp_path):
    """Each attempt says that it took a second."""
    backend = failing(lambda trial: True)
    limits = Limits(trial_timeout=2.5, max_retries=9, max_failures="none")
    study = run_scripted(tmp_path / "s", sweep_of(**FLAT, run_cap=1, limits=limits), backend)
    assert [task.timeout for task in backend.tasks] == [2.5, 1.5, 0.5]
    assert [event.retry for event in of_kind(tmp_path / "s", Failed)] == [True, True, False]
    (row,) = study.trials
    assert (row.state, row.seconds) == (FAILED, 3.0)


def test_lost_attempts_count_towards_a_trials_time_and_not_its_timeout(tmp_path):
    def answer(task: Task) -> Sequence[Message]:
        attempt = task.segment.attempt
        return [Lost(0, attempt, "node 7 died", seconds=2.0)] if attempt < 3 else [done(task)]

    backend = ScriptedBackend(answer)
    study = run_scripted(tmp_path / "s", sweep_of(**FLAT, run_cap=1, limits=Limits(trial_timeout=2.5)), backend)
    assert [task.timeout for task in backend.tasks] == [2.5, 2.5, 2.5]
    (row,) = study.trials
    assert (row.state, row.seconds) == (COMPLETE, 5.0)


@pytest.mark.parametrize("early", [Hyperband(9), Hyperband(3), SuccessiveHalving(9), None])
def test_a_sweep_whose_first_five_trials_fail_ends_with_the_traceback_and_goes_on_as_if_nothing_had_been(
    tmp_path, early
):
    """Also where they were all the trials of some rungs."""
    sweep = sweep_of(early_terminate=early, max_iter=None if early else 4, run_cap=20 if early is None else None)
    backend = failing(lambda trial: True)
    with pytest.raises(TrainableError, match=r"5 of the 5 trials(.|\n)*ValueError: no\nTraceback"):
        run_scripted(tmp_path / "s", sweep, backend)
    assert len(backend.tasks) == 5
    study = load(tmp_path / "s")
    assert study.state == "error"
    assert "ValueError: no" in study.message
    assert states(study) == [WAITING] * 5
    resumed = run_scripted(tmp_path / "s", sweep, working(3))
    assert table(resumed) == table(run_scripted(tmp_path / "calm", sweep, working()))
    assert table(load(tmp_path / "s")) == table(resumed)


def test_what_still_ran_when_the_sweep_ended_for_its_failures_runs_again_too(tmp_path):
    sweep = sweep_of(**FLAT, run_cap=20)
    backend = failing(lambda trial: True, workers=8)
    with pytest.raises(TrainableError):
        run_scripted(tmp_path / "s", sweep, backend)
    assert len(of_kind(tmp_path / "s", Failed)) == len(backend.tasks) > 5
    assert set(states(load(tmp_path / "s"))) == {WAITING}


def test_single_failures_end_nothing(tmp_path):
    study = run_scripted(
        tmp_path / "s", sweep_of(**FLAT, run_cap=40), failing(lambda trial: trial < 4 or trial % 3 == 0)
    )
    assert study.state == "finished"
    assert states(study).count(FAILED) == 16


def test_a_sweep_of_which_half_fails_ends_and_decided_rungs_stay_as_they_are(tmp_path):
    """The first rungs of the brackets of nine and of five are decided when the twentieth trial is tried."""
    sweep = sweep_of(early_terminate=Hyperband(9, brackets=20))
    with pytest.raises(TrainableError, match="10 of the 20 trials"):
        run_scripted(tmp_path / "s", sweep, failing(lambda trial: trial % 2 == 1))
    study = load(tmp_path / "s")
    assert study.state == "error"
    assert [row.number for row in study.trials if row.state is FAILED] == [1, 3, 5, 7, 9, 11, 13]


@pytest.mark.parametrize(("limit", "tasks"), [(1, 1), (3, 3), (9, 9)])
def test_a_number_is_how_many_failed_trials_end_the_sweep(tmp_path, limit, tasks):
    backend = failing(lambda trial: True)
    with pytest.raises(TrainableError):
        run_scripted(tmp_path / "s", sweep_of(**FLAT, run_cap=20, limits=Limits(max_failures=limit)), backend)
    assert len(backend.tasks) == tasks


def test_without_the_limit_all_trials_may_fail(tmp_path):
    limits = Limits(max_failures="none")
    study = run_scripted(tmp_path / "s", sweep_of(**FLAT, run_cap=20, limits=limits), failing(lambda trial: True))
    assert (study.state, states(study)) == ("finished", [FAILED] * 20)


@settings(deadline=None, max_examples=15)
@given(
    bad=st.sets(st.integers(0, 30)),
    workers=st.integers(1, 9),
    seed=st.integers(0, 99),
    limit=st.sampled_from(["auto", 1, 3]),
    early=st.sampled_from([Hyperband(9), Hyperband(3), SuccessiveHalving(9), None]),
)
def test_whether_and_where_failures_end_a_sweep_changes_nothing_in_the_table(
    tmp_path_factory, bad, workers, seed, limit, early
):
    """The order in which failures arrive decides whether it ends; resumed without the limit it comes to the same."""
    place = tmp_path_factory.mktemp("s")
    shape: dict[str, Any] = {"early_terminate": early, "max_iter": None if early else 4}
    shape["run_cap"] = None if early else 12
    unlimited = sweep_of(**shape, limits=Limits(max_failures="none"))
    calm = run_scripted(place / "calm", unlimited, failing(bad.__contains__))
    sweep: Sweep = sweep_of(**shape, limits=Limits(max_failures=limit))
    try:
        study = run_scripted(place / "s", sweep, failing(bad.__contains__, workers, seed))
    except TrainableError:
        study = run_scripted(place / "s", unlimited, failing(bad.__contains__, workers, seed + 1))
    assert study.state == "finished"
    assert table(study) == table(calm) == table(load(place / "s"))


def test_a_retried_trial_goes_on_from_its_newest_checkpoint_with_all_its_time_and_retries(tmp_path):
    def answer(task: Task) -> Sequence[Message]:
        return [saved(task, 2), failed(task)] if task.segment.attempt == 1 else [failed(task)]

    sweep = sweep_of(**FLAT, run_cap=1, limits=Limits(trial_timeout=2.0, max_retries=1))
    study = run_scripted(tmp_path / "s", sweep, ScriptedBackend(answer))
    assert (study.state, states(study)) == ("finished", [FAILED])
    backend = working()
    backend.answer = lambda task: [failed(task) if task.segment.attempt == 3 else done(task)]
    study = run_scripted(tmp_path / "s", sweep, backend, retry=())
    assert (study.state, states(study)) == ("finished", [COMPLETE])
    assert [(task.segment.attempt, task.segment.start, task.timeout) for task in backend.tasks] == [
        (3, 2, 2.0),
        (4, 2, 1.0),
    ]
    assert study.trials[0].failure is None
    assert study.iterations == 4


def test_reports_of_the_attempt_that_failed_count_no_more_when_its_trial_is_retried(tmp_path):
    """Mended, it ends by itself before the iteration that it once reached."""

    def answer(task: Task) -> Sequence[Message]:
        message = failed(task)
        reports = done(task, loss=lambda trial, iteration: 0.001).reports[:3]
        object.__setattr__(message, "reports", reports)
        return [message]

    sweep = sweep_of(**FLAT, run_cap=1)
    assert run_scripted(tmp_path / "s", sweep, ScriptedBackend(answer)).trials[0].iterations == 3
    short = ScriptedBackend(lambda task: [done(task, at=2, loss=lambda trial, iteration: 5.0)])
    study = run_scripted(tmp_path / "s", sweep, short, retry=[0])
    (row,) = study.trials
    assert (row.state, row.iterations, row.value, study.iterations) == (COMPLETE, 2, 5.0, 2)
    assert study.best_value == 5.0


def test_a_failed_trial_whose_rung_is_decided_runs_again_as_a_new_one(tmp_path):
    sweep = sweep_of(early_terminate=SuccessiveHalving(9), limits=Limits(max_failures="none"))
    study = run_scripted(tmp_path / "s", sweep, failing(lambda trial: trial == 4))
    assert (study.state, states(study).count(FAILED)) == ("finished", 1)
    before = events_of(tmp_path / "s")
    with pytest.raises(SweepError, match=r"trial 4 (.|\n)*creates only 0 more; add --set run_cap=10"):
        run_scripted(tmp_path / "s", sweep, working(), retry=[4])
    assert events_of(tmp_path / "s") == before
    more = sweep_of(early_terminate=SuccessiveHalving(9), limits=Limits(max_failures="none"), run_cap=10)
    study = run_scripted(tmp_path / "s", more, working(), retry=[4])
    assert (study.state, len(study.trials)) == ("finished", 10)
    assert study.trials[9].params == study.trials[4].params
    assert (study.trials[4].state, study.trials[9].state, study.trials[9].origin) == (FAILED, COMPLETE, "retry")
    with pytest.raises(SweepError, match="nothing to retry"):
        run_scripted(tmp_path / "s", more, working(), retry=())


def test_a_new_trial_for_a_failed_one_puts_none_of_the_searchers_out(tmp_path):
    """Killed while the second bracket begins, with the first one decided."""
    sweep = sweep_of(early_terminate=Hyperband(9), limits=Limits(max_failures=2))
    calm = run_scripted(tmp_path / "calm", sweep, working())
    with pytest.raises(TrainableError):
        run_scripted(tmp_path / "s", sweep, failing(lambda trial: trial in (4, 10)))
    study = load(tmp_path / "s")
    assert [row.number for row in study.trials if row.state is FAILED] == [4]
    created = len(study.trials)
    study = run_scripted(tmp_path / "s", sweep, working(), retry=[4])
    params = [row.params for row in study.trials]
    assert params[created] == params[4]
    assert [*params[:created], *params[created + 1 :]] == [row.params for row in calm.trials][:-1]


@pytest.mark.parametrize(("asked", "text"), [([3], "got trial 3; there is trial 1"), ([9, 1], "got trial 9;")])
def test_only_failed_trials_are_retried(tmp_path, asked, text):
    sweep = sweep_of(**FLAT, run_cap=5)
    run_scripted(tmp_path / "s", sweep, failing(lambda trial: trial == 1))
    with pytest.raises(SweepError, match=text):
        run_scripted(tmp_path / "s", sweep, working(), retry=asked)
    assert events_of(tmp_path / "s")[-1] == Ended("finished")


def test_a_retry_that_was_killed_goes_on(tmp_path):
    def answer(task: Task) -> Sequence[Message]:
        raise ZeroDivisionError

    sweep = sweep_of(**FLAT, run_cap=5)
    run_scripted(tmp_path / "s", sweep, failing(lambda trial: trial in (1, 3)))
    with pytest.raises(ZeroDivisionError):
        run_scripted(tmp_path / "s", sweep, ScriptedBackend(answer), retry=())
    assert [event.trial for event in of_kind(tmp_path / "s", Retried)] == [1, 3]
    study = run_scripted(tmp_path / "s", sweep, working())
    assert table(study) == table(run_scripted(tmp_path / "calm", sweep, working()))
    assert len(of_kind(tmp_path / "s", Started)) == 5 + 1 + 2
