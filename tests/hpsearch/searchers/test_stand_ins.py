"""Workers that are free while a searcher works: who stands in, and for whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from hpsearch.errors import JournalError
from hpsearch.events import Asked, Event, Exhausted, Failed, Finished, Opened, Retried, Started
from hpsearch.run import study_run
from hpsearch.schedulers.base import Done, Wait
from hpsearch.schedulers.halving import SuccessiveHalving
from hpsearch.searchers import Past, Search, Searcher
from hpsearch.searchers.calls import DirectCalls, SearcherAnswer
from hpsearch.space import IntUniform, Space
from hpsearch.study.build import build_searcher
from hpsearch.study.state import SweepState
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import Failure, Report
from tests.hpsearch.support.climbing import Climbing
from tests.hpsearch.support.scripted import ScriptedBackend, done, run_scripted, sweep_of

OPENED = Opened("inline", 1, "me@here:1", "test")


class Slow(DirectCalls):
    """Has an answer only where a test lets it."""

    works = False

    def ready(self) -> bool:
        return not self.works


@pytest.mark.parametrize("method", ["tpe", "evolution", "spectral", "optuna.samplers:RandomSampler"])
def test_what_a_stand_in_took_is_tried_no_second_time(method):
    sweep = sweep_of(
        method=method,
        parameters=Space.from_parameters({"x": IntUniform(1, 6)}),
        early_terminate=None,
        max_iter=1,
        run_cap=20,
        search=Search(startup=0),
    )
    calls: list[Slow] = []

    def calls_of(sweep: Sweep, searcher: Searcher, past: Sequence[Past] = ()) -> Slow:
        calls.append(Slow(searcher))
        return calls[-1]

    state = SweepState(sweep, calls_of)
    events: list[Event] = []

    def take(event: Any) -> None:
        state.apply(event)
        events.append(event)

    take(OPENED)
    take(state.next())
    take(state.next())  # nothing stands in for the first suggestion
    take(state.next())
    calls[0].works = True
    for _ in range(5):
        starts = state.upcoming(stand_in=True)
        take(next(starts))
    calls[0].works = False
    take(state.next())  # all points were tried while it was worked out
    assert [type(event) for event in events] == [Opened, Asked, Started, Asked, *[Started] * 5, Exhausted]
    assert sorted(row.params["x"] for row in state.rows()) == [1, 2, 3, 4, 5, 6]
    assert len(list(SweepState(sweep).replay(events))) == len(events)


def test_each_free_worker_gets_a_stand_in(tmp_path, monkeypatch):
    """The first suggestion is there, and the second one never."""

    class Late(DirectCalls):
        given = 0

        def ready(self) -> bool:
            return self.given == 0

        def answer(self):
            self.given += 1
            return super().answer()

    monkeypatch.setattr(study_run, "ProcessCalls", lambda sweep, past: Late(build_searcher(sweep, past)))
    backend = ScriptedBackend(lambda task: [done(task)], workers=4)
    wait = backend.wait

    def later(timeout: float | None):
        backend.clock += 1.0
        return wait(timeout)

    monkeypatch.setattr(backend, "wait", later)
    sweep = sweep_of(method=Climbing.kind, early_terminate=None, max_iter=1, run_cap=12)
    origins = [row.origin for row in run_scripted(tmp_path, sweep, backend).trials]
    assert origins == ["climbing", *["stand_in"] * 11]


def test_with_a_lag_no_worker_idles_that_may_work(tmp_path, monkeypatch):
    monkeypatch.setattr(study_run, "ProcessCalls", lambda sweep, past: DirectCalls(build_searcher(sweep, past)))
    backend = ScriptedBackend(lambda task: [done(task)], workers=4)
    wait, running = backend.wait, []

    def watched(timeout: float | None):
        running.append(len(backend.running))
        return wait(timeout)

    monkeypatch.setattr(backend, "wait", watched)
    sweep = sweep_of(method=Climbing.kind, early_terminate=None, max_iter=1, run_cap=12, search=Search(lag=4))
    run_scripted(tmp_path, sweep, backend)
    assert running[0] == 4


FAILURE = Failure("raised", "no", "")


def finished(start: Started, loss: float) -> Finished:
    segment = start.segment
    reports = tuple(Report(segment.trial, i, {"loss": loss}, 0.1) for i in range(segment.start + 1, segment.end + 1))  # type: ignore[operator]
    return Finished(segment.trial, segment.attempt, segment.end or 1, None, reports, False, 0.1)


def test_with_a_lag_a_trial_that_is_run_once_more_takes_no_suggestions_place():
    """Suggestion n knows of all trials before it, also where failed ones were tried anew in between."""
    sweep = sweep_of(
        method="tpe",
        parameters=Space.from_parameters({"x": IntUniform(1, 8)}),
        early_terminate=SuccessiveHalving(3, trials=2, eta=2, min_iter=2),
        run_cap=30,
        search=Search(lag=1, startup=2),
    )
    state = SweepState(sweep)
    state.apply(OPENED)
    while not isinstance(event := state.next(), Exhausted | Wait | Done):
        state.apply(event)
        if isinstance(event, Started) and event.segment.trial == 0:
            state.apply(Failed(0, 1, FAILURE, False, ()))
        elif isinstance(event, Started):
            state.apply(finished(event, 1.0))
            if state.failed() and not state.may_run_again(0):
                state.apply(Retried(0))
    rows = state.rows()
    assert sum(row.origin == "retry" for row in rows) == 1
    assert sorted(row.params["x"] for row in rows if row.origin != "retry") == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("lag", [None, 1])
def test_a_failure_counts_no_more_once_the_trial_runs_again(lag):
    """With a lag, too, whose suggestions hear of each first rung once."""
    search = Search(lag=lag, ahead=False)
    sweep = sweep_of(method=Climbing.kind, early_terminate=None, max_iter=1, run_cap=4, search=search)
    searchers: list[Searcher] = []

    def calls_of(sweep: Sweep, searcher: Searcher, past: Sequence[Past] = ()) -> DirectCalls:
        searchers.append(searcher)
        return DirectCalls(searcher)

    state = SweepState(sweep, calls_of)
    state.apply(OPENED)
    while not isinstance(event := state.next(), Wait | Done):
        state.apply(event)
        if isinstance(event, Started) and event.segment.trial == 1 and event.segment.attempt == 1:
            state.apply(Failed(1, 1, FAILURE, False, ()))
        elif isinstance(event, Started):
            state.apply(finished(event, 0.0 if event.segment.trial == 1 else 1.0))
            if event.segment.trial == 2:
                state.apply(Retried(1))
    (searcher,) = searchers
    assert isinstance(searcher, Climbing)
    calls = [call for call in searcher.calls if call.split()[1] == "1"]
    assert calls == ["started 1", "observe 1 0 True", "reverted 1 0", "observe 1 1 True"]


def test_a_searcher_that_says_otherwise_than_the_journal_is_let_go(tmp_path, monkeypatch):
    closed: list[DirectCalls] = []

    class Changing(DirectCalls):
        def answer(self) -> SearcherAnswer:
            answer = super().answer()
            assert answer.suggestion is not None
            return replace(answer, suggestion=replace(answer.suggestion, params={"x": 0.1 * (1 + len(closed))}))

        def close(self) -> None:
            closed.append(self)

    monkeypatch.setattr(study_run, "ProcessCalls", lambda sweep, past: Changing(build_searcher(sweep, past)))
    sweep = sweep_of(method=Climbing.kind, early_terminate=None, max_iter=1, run_cap=3)
    run_scripted(tmp_path, sweep, ScriptedBackend(lambda task: [done(task)]))
    with pytest.raises(JournalError, match="doesn't replay"):
        run_scripted(tmp_path, replace(sweep, run_cap=4), ScriptedBackend(lambda task: [done(task)]))
    assert len(closed) == 2
