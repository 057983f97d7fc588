"""How a run ends: by itself, because it is told to, or because something broke."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

import pytest

from hpsearch.backends.simulated import SimulatedBackend
from hpsearch.errors import BackendError, Interrupted
from hpsearch.events import Ended, Event, Finished
from hpsearch.journal.journal import Journal
from hpsearch.observers.display import SilentDisplay
from hpsearch.observers.observer_hub import Times
from hpsearch.results.study import load
from hpsearch.run.simulate import simulate
from hpsearch.run.study_run import RunSettings, create_study, run_study
from hpsearch.sweep.parts import Limits
from hpsearch.task import Message, Task
from hpsearch.trial import TrialState
from tests.hpsearch.support.functions import Functions
from tests.hpsearch.support.scripted import (
    ScriptedBackend,
    cut_at_next_report,
    done,
    events_of,
    of_kind,
    run_scripted,
    sweep_of,
)

FLAT = {"early_terminate": None, "max_iter": 4}


def interrupting(signals: int, at: int = 5, workers: int = 2) -> ScriptedBackend:
    """A backend during whose n-th answer the user presses Ctrl-C so many times."""
    answered = 0

    def answer(task: Task) -> Sequence[Message]:
        nonlocal answered
        answered += 1
        for _ in range(signals if answered == at else 0):
            os.kill(os.getpid(), signal.SIGINT)
        return cut_at_next_report(backend, task)

    backend = ScriptedBackend(answer, workers)
    return backend


def test_ctrl_c_once_ends_what_runs_at_its_next_report_and_the_sweep_goes_on_from_there(tmp_path):
    path = tmp_path / "s"
    sweep = sweep_of(**FLAT, run_cap=9)
    backend = interrupting(1)
    handler = signal.getsignal(signal.SIGINT)
    study = run_scripted(path, sweep, backend)
    assert signal.getsignal(signal.SIGINT) is handler
    assert study.state == "interrupted"
    assert events_of(path)[-1] == Ended("interrupted")
    assert backend.closed == [False]
    assert len(backend.tasks) <= 7  # five answers; it doesn't go on long after the last of them
    cuts = sorted([event for event in of_kind(path, Finished) if event.cut], key=lambda event: event.trial)
    assert cuts
    assert {cut.iteration for cut in cuts} == {1}
    assert [row.number for row in study.trials if row.state is TrialState.WAITING] == [cut.trial for cut in cuts]

    resumed = ScriptedBackend(lambda task: [done(task)])
    assert run_scripted(path, None, resumed).state == "finished"
    first = [task.segment for task in resumed.tasks[: len(cuts)]]
    assert [(s.trial, s.start, s.checkpoint) for s in first] == [(cut.trial, 1, cut.checkpoint) for cut in cuts]
    assert load(path).iterations == 9 * 4  # not one of them twice


def test_ctrl_c_twice_ends_at_once_and_nothing_is_lost_that_counted(tmp_path):
    path = tmp_path / "s"
    backend = interrupting(2)
    study = run_scripted(path, sweep_of(**FLAT, run_cap=9), backend)
    assert study.state == "interrupted"
    assert backend.closed == [True]
    assert of_kind(path, Ended) == [Ended("interrupted")]
    assert len(of_kind(path, Finished)) == 4
    assert {row.state for row in study.trials} == {TrialState.COMPLETE, TrialState.WAITING}
    study = run_scripted(path, None, ScriptedBackend(lambda task: [done(task)]))
    assert study.state == "finished"
    assert len(of_kind(path, Finished)) == 9


def test_a_stop_request_ends_it_like_ctrl_c(tmp_path):
    path = tmp_path / "s"

    def answer(task: Task) -> Sequence[Message]:
        if len(backend.tasks) == 10:
            with Journal.read(path / "study.db") as journal:
                journal.request("unheard of")
                journal.request("stop")
        return cut_at_next_report(backend, task)

    backend = ScriptedBackend(answer, 2)
    study = run_scripted(path, sweep_of(**FLAT, run_cap=10**6), backend)
    assert study.state == "stopped"
    assert events_of(path)[-1] == Ended("stopped")
    # an old request doesn't stop the next run
    backend = interrupting(1, at=300)
    assert run_scripted(path, None, backend).state == "interrupted"
    assert len(backend.tasks) >= 300


def test_max_time_ends_it(tmp_path):
    path = tmp_path / "s"

    def answer(task: Task) -> Sequence[Message]:
        backend.clock += 1.0
        return cut_at_next_report(backend, task)

    backend = ScriptedBackend(answer, 2)
    study = run_scripted(path, sweep_of(**FLAT, run_cap=10**6, limits=Limits(max_time=20.0)), backend)
    assert study.state == "max_time"
    assert backend.clock >= 20.0
    assert all(row.state is not TrialState.RUNNING for row in study.trials)


def test_a_backend_that_cant_be_opened_is_closed_and_the_study_can_be_resumed(tmp_path):
    class Broken(ScriptedBackend):
        def open(self, job, deliver):
            raise BackendError("no cluster at 10.0.0.1:6379")

    backend = Broken(lambda task: [done(task)])
    with pytest.raises(BackendError, match="no cluster"):
        run_scripted(tmp_path / "s", sweep_of(), backend)
    assert backend.closed == [True]
    left = load(tmp_path / "s")
    assert (left.state, left.message) == ("error", "no cluster at 10.0.0.1:6379")
    assert run_scripted(tmp_path / "s", None, ScriptedBackend(lambda task: [done(task)])).state == "finished"


def test_a_bug_in_the_backend_passes_through_and_kills_what_runs(tmp_path):
    def answer(task: Task) -> Sequence[Message]:
        raise ZeroDivisionError

    backend = ScriptedBackend(answer)
    with pytest.raises(ZeroDivisionError):
        run_scripted(tmp_path / "s", sweep_of(), backend)
    assert backend.closed == [True]
    assert of_kind(tmp_path / "s", Ended) == [Ended("error", "ZeroDivisionError")]


def test_a_signal_in_the_middle_of_writing_writes_nothing_more_and_the_sweep_goes_on(tmp_path):
    """What was noted by then, and isn't in the journal, has never been: an end behind it would not replay."""
    path = tmp_path / "s"
    sweep = sweep_of(**FLAT, run_cap=9)

    class Struck(ScriptedBackend):
        def wall(self) -> float:
            if len(self.tasks) == 3 and not self.running:
                raise Interrupted
            return super().wall()

    study = run_scripted(path, sweep, Struck(lambda task: [done(task)]))
    assert study.state == "killed"
    assert not of_kind(path, Ended)
    assert len(of_kind(path, Finished)) == 2
    study = run_scripted(path, None, ScriptedBackend(lambda task: [done(task)]))
    whole = run_scripted(tmp_path / "whole", sweep, ScriptedBackend(lambda task: [done(task)]))
    assert (study.state, study.trials_dataframe().value.tolist()) == (
        "finished",
        whole.trials_dataframe().value.tolist(),
    )


def test_a_signal_after_the_sweep_has_ended_takes_nothing_from_that(tmp_path):
    class Struck(Times):
        def observe(self, event: Event) -> None:
            if isinstance(event, Ended):  # it is in the journal by now
                raise Interrupted

    place = create_study(sweep_of(**FLAT, run_cap=2), tmp_path / "s")
    backend = ScriptedBackend(lambda task: [done(task)])
    run = RunSettings("package.module:function", lambda _: backend, SilentDisplay(), tensorboard=False, times=Struck())
    assert run_study(place, None, run).state == "finished"
    assert of_kind(place.path, Ended) == [Ended("finished")]


class LastWorkersGone(SimulatedBackend):
    """Its workers go with the last trial."""

    def __init__(self, trials: int) -> None:
        super().__init__(1, Functions(metric=lambda trial, iteration: 0.0, seconds=lambda trial, segment: 1.0))
        self._left = trials

    def start(self, task: Task) -> None:
        super().start(task)
        self._left -= 1

    def capacity(self, lanes: int = 1) -> int:
        return super().capacity(lanes) if self._left else 0


def test_a_sweep_that_has_nothing_more_to_run_waits_for_no_worker():
    sweep_state = simulate(sweep_of(**FLAT, run_cap=3), LastWorkersGone(3))
    assert [row.state for row in sweep_state.rows()] == [TrialState.COMPLETE] * 3
