"""Ask and tell: what is given out, what is taken, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import hpsearch
from hpsearch.errors import JournalError, SweepError, TellError, TrainableError
from hpsearch.events import Ended, Extended, Opened, Saved
from hpsearch.run.ask_tell import AskTell
from hpsearch.run.study_run import create_study
from hpsearch.schedulers.halving import SuccessiveHalving
from hpsearch.searchers import Search
from hpsearch.space import Space, Uniform
from hpsearch.sweep.parts import Limits, Metric
from hpsearch.trial import TrialState
from tests.hpsearch.support.asking import ask, asked_sweep, by_x, finish, halving, refused, reports
from tests.hpsearch.support.scripted import ScriptedBackend, done, events_of, of_kind, run_scripted, sweep_of


@pytest.fixture
def lab(tmp_path: Path) -> AskTell:
    return AskTell(asked_sweep(), directory=tmp_path / "lab")


def test_a_trial_stays_open_until_it_is_told(lab):
    first, second = ask(lab), ask(lab)
    assert (first.number, second.number) == (0, 1)
    again = AskTell(directory=lab.directory)
    assert again.open_trials() == [first, second]
    study = hpsearch.load(lab.directory)
    assert (study.state, [row.state for row in study.trials]) == ("open", [TrialState.RUNNING] * 2)
    assert [row.ended for row in study.segments()] == ["running"] * 2
    assert again.tell(first, {"loss": 0.5, "other": 2}) is TrialState.COMPLETE
    assert again.open_trials() == lab.open_trials() == [second]
    assert hpsearch.load(lab.directory).trials[0].metrics == {"loss": 0.5, "other": 2.0}
    assert len(of_kind(lab.directory, Opened)) == 1


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), torch.tensor(0.5)])
def test_a_number_is_the_sweeps_only_metric(lab, value):
    assert lab.tell(ask(lab), value) is TrialState.COMPLETE
    assert lab.report(ask(lab), value) is TrialState.COMPLETE
    assert [row.metrics for row in hpsearch.load(lab.directory).trials] == [{"loss": 0.5}] * 2


def test_a_number_is_no_report_of_several_metrics_nor_one_of_several_reports(tmp_path):
    two = asked_sweep(metric=(Metric("loss", "minimize"), Metric("size", "minimize")))
    lab = AskTell(two, directory=tmp_path / "two")
    with pytest.raises(TrainableError, match=r'a float, 0\.5: write \{"loss": 0\.9, "size": 0\.9\}'):
        lab.tell(ask(lab), 0.5)
    with AskTell(asked_sweep(max_iter=2), directory=tmp_path / "lab") as lab:
        trial = ask(lab)
        with pytest.raises(TrainableError, match="must be a mapping of names to numbers, but is a float"):
            lab.tell(trial, [0.5, 0.25])  # type: ignore[list-item]
        with pytest.raises(TellError, match="the last one alone with iteration=2"):
            lab.tell(trial, 0.5)
        assert lab.tell(trial, 0.5, iteration=2) is TrialState.COMPLETE


def test_params_are_nested_and_the_seed_is_the_trials(tmp_path):
    space = Space.from_parameters({"opt": {"x": Uniform(0.0, 1.0)}, "depth": 3})
    trial = ask(AskTell(asked_sweep(parameters=space), directory=tmp_path / "lab"))
    assert trial.params == {"opt": {"x": trial.flat["opt.x"]}, "depth": 3}
    run_scripted(tmp_path / "run", sweep_of(parameters=space), backend := ScriptedBackend(lambda task: [done(task)]))
    assert backend.tasks[0].trial.seed == trial.seed
    assert backend.tasks[0].trial.params == trial.flat


def test_nothing_now_isnt_nothing_more(tmp_path):
    with AskTell(halving(), directory=tmp_path / "lab") as lab:
        first = [ask(lab) for _ in range(9)]
        assert lab.ask() is None
        assert not lab.finished
        for trial in first:
            lab.tell(trial, {"loss": by_x(trial, 1)})
        goes_on = ask(lab)
        assert (goes_on.attempt, goes_on.start, goes_on.end) == (2, 1, 3)
        finish_open = [goes_on, ask(lab), ask(lab)]
        assert lab.ask() is None
        for trial in finish_open:
            lab.tell(trial, reports(trial, by_x))
        last = ask(lab)
        assert (last.attempt, last.start, last.end) == (3, 3, 9)
        assert lab.tell(last, {"loss": 0.1}, iteration=9) is TrialState.COMPLETE  # only the last was measured
        assert lab.finished
        assert lab.ask() is None
    study = hpsearch.load(tmp_path / "lab")
    assert (study.state, study.iterations, study.total) == ("finished", 9 + 6 + 6, (9, 21))
    assert events_of(tmp_path / "lab")[-1] == Ended("finished")


def test_iterations_are_reported_one_by_one(tmp_path):
    directory = tmp_path / "lab"
    with AskTell(asked_sweep(max_iter=3), directory=directory) as lab:
        trial = ask(lab)
        assert lab.report(trial, {"loss": 3.0}) is TrialState.RUNNING
        with pytest.raises(TellError, match="iteration 2 comes next"):
            lab.report(trial, {"loss": 2.0}, iteration=3)
        assert lab.report(0, {"loss": 2.0}, iteration=2) is TrialState.RUNNING
        with pytest.raises(TellError, match="iteration 2 was told already"):
            lab.report(0, {"loss": 2.0}, iteration=2)
        assert AskTell(directory=directory).open_trials()[0].start == 2
        assert hpsearch.load(directory).curves() == {0: [(1, 3.0), (2, 2.0)]}
        assert lab.report(trial, {"loss": 1.0}) is TrialState.COMPLETE
        with pytest.raises(TellError, match="isn't open: it was told and is complete"):
            lab.report(trial, {"loss": 1.0})
    assert [type(event) for event in events_of(directory)].count(Saved) == 2


def test_a_trial_may_end_by_itself(tmp_path):
    with AskTell(asked_sweep(max_iter=9), directory=tmp_path / "lab") as lab:
        early, none = ask(lab), ask(lab)
        assert lab.tell(early, [{"loss": 0.3}, {"loss": 0.2}], ended=True) is TrialState.COMPLETE
        with pytest.raises(TellError, match="must have a report"):
            lab.tell(none, ended=True)
        lab.report(none, {"loss": math.nan})
        assert lab.tell(none, ended=True) is TrialState.COMPLETE
    rows = hpsearch.load(tmp_path / "lab").trials
    assert [(row.iterations, row.value) for row in rows] == [(2, 0.2), (1, None)]


def test_without_a_last_iteration_one_value_is_one_report(tmp_path):
    with AskTell(asked_sweep(max_iter=None), directory=tmp_path / "lab") as lab:
        trial = ask(lab)
        assert trial.end is None
        assert lab.tell(trial, {"loss": 0.5}) is TrialState.COMPLETE
        trial = ask(lab)
        lab.report(trial, {"loss": 0.5})
        lab.report(trial, {"loss": 0.4})
        assert lab.tell(trial, ended=True) is TrialState.COMPLETE
    assert [row.iterations for row in hpsearch.load(tmp_path / "lab").trials] == [1, 2]


def test_what_doesnt_fit_is_refused_and_changes_nothing(lab):
    refused(lab, "trial 0 was never asked for; none was", lambda: lab.tell(0, {"loss": 1.0}))
    trial = ask(lab)
    refused(lab, "trial 1 was never asked for; there are trials 0 to 0", lambda: lab.tell(1, {"loss": 1.0}))
    refused(lab, "trial -1 was never asked for", lambda: lab.give_up(-1))
    refused(lab, "got a report of iteration 2", lambda: lab.tell(trial, [{"loss": 1.0}] * 2))
    refused(lab, "did you mean", lambda: lab.tell(trial, {"lss": 1.0}), TrainableError)
    refused(lab, "must be a number", lambda: lab.tell(trial, {"loss": "1"}), TrainableError)
    refused(lab, "must be given alone", lambda: lab.tell(trial, {"loss": 1.0}, failed="no"))
    lab.tell(trial, {"loss": 1.0})
    refused(lab, "it was told and is complete", lambda: lab.tell(trial, {"loss": 1.0}))
    refused(lab, "only a trial that has failed|no trial has failed", lambda: lab.retry(0), SweepError)
    assert ask(lab).number == 1


def test_a_word_on_a_former_attempt_never_counts_for_another(tmp_path):
    early = SuccessiveHalving(4, min_iter=1, eta=2, trials=2)
    with AskTell(asked_sweep(early_terminate=early, max_iter=None, run_cap=None), directory=tmp_path / "lab") as lab:
        first, other = ask(lab), ask(lab)
        lab.give_up(first, "the oven broke")
        refused(lab, "isn't open", lambda: lab.tell(first, {"loss": 0.1}))
        refused(lab, "isn't open", lambda: lab.give_up(0))
        second = ask(lab)
        assert (second.number, second.attempt, second.params, second.seed) == (0, 2, first.params, first.seed)
        refused(lab, "attempt 1 of trial 0 isn't open any more", lambda: lab.tell(first, {"loss": 0.1}))
        refused(lab, "given out 2 times", lambda: lab.tell(0, {"loss": 0.1}))
        lab.tell(0, {"loss": 0.1}, attempt=2)
        lab.tell(other, {"loss": 0.2})
        promoted = ask(lab)
        assert (promoted.number, promoted.attempt, promoted.start, promoted.end) == (0, 3, 1, 2)
        refused(lab, "attempt 2 of trial 0 isn't open any more", lambda: lab.tell(second, {"loss": 0.1}))
        refused(lab, "given out 3 times", lambda: lab.tell(0, {"loss": 0.1}))
        lab.tell(promoted, {"loss": 0.1})
        finish(lab)
    ended = [(row.trial, row.attempt, row.ended, row.message) for row in hpsearch.load(tmp_path / "lab").segments()]
    assert ended[0] == (0, 1, "lost", "the oven broke")


def test_reports_of_an_attempt_that_was_given_up_stay(tmp_path):
    with AskTell(asked_sweep(max_iter=3), directory=tmp_path / "lab") as lab:
        trial = ask(lab)
        lab.report(trial, {"loss": 3.0})
        lab.give_up(trial)
        again = ask(lab)
        assert (again.number, again.attempt, again.start, again.end) == (0, 2, 1, 3)
        lab.tell(again, [{"loss": 2.0}, {"loss": 1.0}])
    study = hpsearch.load(tmp_path / "lab")
    assert study.curves() == {0: [(1, 3.0), (2, 2.0), (3, 1.0)]}
    assert study.iterations == 3


def test_failures_go_by_the_usual_rules(tmp_path):
    sweep = asked_sweep(limits=Limits(max_retries=1, max_failures=2))
    with AskTell(sweep, directory=tmp_path / "lab") as lab:
        trial = ask(lab)
        assert lab.tell(trial, failed="out of flour\nwhere: the kitchen") is TrialState.WAITING
        again = ask(lab)
        assert (again.number, again.attempt) == (0, 2)
        assert lab.tell(again, failed="burnt") is TrialState.FAILED
        refused(lab, "it has failed: burnt", lambda: lab.tell(again, {"loss": 1.0}))
        for _ in range(2):
            lab.tell(ask(lab), failed="burnt")
        refused(lab, "2 of the 2 trials .* have failed", lab.ask, TrainableError)
        lab.retry(0)
        assert ask(lab).number == 0  # one failure is below the limit
    limits = Limits(max_failures="none")
    with AskTell(asked_sweep(limits=limits), directory=tmp_path / "lab") as lab:
        for trial in lab.open_trials():
            lab.tell(trial, {"loss": 1.0})
        finish(lab)
        lab.retry()
        assert not lab.finished
        assert ask(lab).number == 1
    row = hpsearch.load(tmp_path / "lab").trials[1]
    assert (row.state, row.failure) == (TrialState.RUNNING, None)


@pytest.mark.parametrize(
    ("method", "avoids", "why", "ends"),
    [
        ("evolution", True, "CUDA out of memory", False),
        ("evolution", False, "CUDA out of memory", True),
        ("evolution", True, "KeyError: lr", True),
        ("random", True, "CUDA out of memory", True),
    ],
)
def test_where_failures_teach_five_of_memory_end_nothing(tmp_path, method, avoids, why, ends):
    search = Search(startup=6, avoid_failures=avoids) if method == "evolution" else Search()
    with AskTell(asked_sweep(method=method, run_cap=20, search=search), directory=tmp_path / "lab") as lab:
        for _ in range(5):
            lab.tell(ask(lab), failed=why)
        if ends:
            refused(lab, "5 of the 5 trials .* have failed", lab.ask, TrainableError)
        else:
            lab.tell(ask(lab), 1.0)
            assert ask(lab).number == 6
    kinds = {row.failure.kind for row in hpsearch.load(tmp_path / "lab").trials if row.failure is not None}
    assert kinds == {"memory" if "memory" in why else "raised"}


def test_a_sweep_is_given_more_to_do_with_trials_open_and_when_it_is_finished(tmp_path):
    with AskTell(asked_sweep(run_cap=1), directory=tmp_path / "lab") as lab:
        trial = ask(lab)
        assert lab.ask() is None
    with AskTell(asked_sweep(run_cap=2), directory=tmp_path / "lab") as more:
        assert more.open_trials() == [trial]
        second = ask(more)
        assert lab.open_trials() == [trial, second]  # one that was opened before knows it as well
        for one in (trial, second):
            more.tell(one, {"loss": 1.0})
        assert more.finished
    with pytest.raises(SweepError, match="run_cap"):
        AskTell(asked_sweep(run_cap=1), directory=tmp_path / "lab")
    with AskTell(asked_sweep(run_cap=3), directory=tmp_path / "lab") as lab:
        assert hpsearch.load(tmp_path / "lab").state == "open"
        lab.tell(ask(lab), {"loss": 1.0})
        assert lab.finished
    assert of_kind(tmp_path / "lab", Extended) == [Extended(2), Extended(3)]


@pytest.mark.parametrize("opened", [False, True])
def test_a_study_is_either_asked_or_run(tmp_path, opened):
    backend = ScriptedBackend(lambda task: [done(task)])
    if opened:
        ask(AskTell(sweep_of(), directory=tmp_path / "asked"))
        with pytest.raises(JournalError, match=r"is used with ask and tell.*Continue with `hpsearch ask"):
            run_scripted(tmp_path / "asked", sweep_of(), backend)
        run_scripted(tmp_path / "run", sweep_of(), backend)
        with pytest.raises(JournalError, match="workers have run the trials of this study"):
            AskTell(sweep_of(), directory=tmp_path / "run")
    else:  # it was made, and nobody has begun
        create_study(asked_sweep(), tmp_path / "new")
        with pytest.raises(SweepError, match="trainable: is required"):
            run_scripted(tmp_path / "new", asked_sweep(), backend)
        assert ask(AskTell(directory=tmp_path / "new")).number == 0
    with pytest.raises(JournalError, match="there is none, and no sweep to make one of"):
        AskTell(directory=tmp_path / "nowhere")
    with pytest.raises(SweepError, match="trainable: is required"):
        hpsearch.search(asked_sweep(), directory=tmp_path / "nowhere", backend="inline")
    assert not (tmp_path / "nowhere").exists()


def test_a_study_that_was_extended_is_not_extended_by_the_same_again(lab):
    lab.steer("extend", {"run_cap": 90})
    for run_cap in (90, 80):
        with pytest.raises(SweepError):
            lab.steer("extend", {"run_cap": run_cap})
    assert [event.run_cap for event in of_kind(lab.directory, Extended)] == [90]
