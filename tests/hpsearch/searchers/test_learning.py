"""A search that learns is resumed from its journal: checked, and going on as before."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

import hpsearch
from hpsearch.errors import JournalError, SearcherError, SweepError
from hpsearch.events import Asked, Event, Exhausted, Finished, Opened, Started
from hpsearch.run.searcher_process import ProcessCalls
from hpsearch.schedulers.base import Done, Wait
from hpsearch.schedulers.halving import SuccessiveHalving
from hpsearch.schedulers.pbt import PBT
from hpsearch.searchers import KNOWN, Past, Search, Searcher, searcher_named
from hpsearch.searchers.calls import Calls, DirectCalls
from hpsearch.space import Space, Uniform
from hpsearch.study.state import SweepState
from hpsearch.study.suggestions import direct_calls
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.trials import rows_to_csv
from hpsearch.trial import Report
from tests.hpsearch.support.climbing import Climbing, Failing, Limited
from tests.hpsearch.support.family import Family
from tests.hpsearch.support.population import Population
from tests.hpsearch.support.scripted import sweep_of
from tests.hpsearch.support.simulations import Bowl
from tests.rarely import rarely

OPENED = Opened("inline", 1, "me@here:1", "test")


def learning(method: str = Climbing.kind, **changes: object) -> Sweep:
    given: dict[str, object] = {
        "method": method,
        "parameters": Space.from_parameters({"x": Uniform(0.0, 1.0)}),
        "points_to_try": ({"x": 0.75},),
        "early_terminate": SuccessiveHalving(9, trials=12),
    }
    return sweep_of(**{**given, **changes})


def live(sweep_state: SweepState, workers: int, seed: int, events: int | None = None) -> list[Event]:
    """Let a sweep go on, ending what runs in any order; return what happened."""
    chance = random.Random(seed)
    happened: list[Event] = []
    while events is None or len(happened) < events:
        answer = sweep_state.next() if len(sweep_state.running()) < workers else sweep_state.request() or Wait()
        if isinstance(answer, Done):
            break
        event: Event
        if not isinstance(answer, Wait):
            event = answer
        else:
            if not sweep_state.running():
                continue  # the searcher works on it
            event = ended(sweep_state, chance.choice(list(sweep_state.running())).trial)
        sweep_state.apply(event)
        happened.append(event)
    return happened


def ended(sweep_state: SweepState, trial: int) -> Finished:
    record = sweep_state.record(trial)
    segment = record.segment
    assert segment is not None
    x = record.trial.params["x"]
    reports = tuple(
        Report(trial, i, {"loss": (x - 0.3) ** 2 / i}, 0.1) for i in range(segment.start + 1, (segment.end or 1) + 1)
    )
    return Finished(trial, segment.attempt, segment.end or 1, None, reports, False, 1.0)


def begun(sweep: Sweep) -> SweepState:
    sweep_state = SweepState(sweep)
    sweep_state.apply(OPENED)
    return sweep_state


def test_what_it_suggests_follows_from_what_it_observed():
    one, other = begun(learning()), begun(learning())
    assert live(one, 3, 1) == live(other, 3, 1)
    assert one.rows() != begun(learning()).rows()
    (best,) = one.leaders()
    assert abs(best.params["x"] - 0.3) < 0.1
    assert {row.origin for row in one.rows()} == {"points_to_try", "climbing"}


def process_calls(sweep: Sweep, _: Searcher, past: Sequence[Past] = ()) -> Calls:
    return ProcessCalls(sweep, past)


@pytest.mark.parametrize(
    ("workers", "calls_of"),
    [(1, direct_calls), (4, direct_calls), (4, process_calls), *rarely((1, process_calls))],
)
def test_a_resumed_search_goes_on_as_the_undisturbed_one(workers, calls_of):
    whole = begun(learning())
    events = live(whole, workers, 7)
    assert sum(isinstance(event, Asked) for event in events) == len(whole.rows()) - 1  # but for the point to try
    for cut in range(1, len(events), 4 if calls_of is direct_calls else 40):
        resumed = SweepState(learning(), calls_of)
        for _ in resumed.replay([OPENED, *events[:cut]]):
            pass
        resumed.prepare()
        for event in events[cut:]:
            if isinstance(event, Started):
                assert answered(resumed) == event
            resumed.apply(event)
        assert resumed.rows() == whole.rows()
        resumed.close()


def answered(sweep_state: SweepState) -> object:
    """Return the scheduler's next answer, once its suggestion is ready."""
    while isinstance(answer := sweep_state.next(), Wait) and sweep_state.is_searching:
        pass
    return answer


def test_the_journal_says_what_each_suggestion_knew():
    events = live(begun(learning()), 4, 7)
    asked = [event for event in events if isinstance(event, Asked)]
    assert [event.number for event in asked] == list(range(1, len(asked) + 1))
    started = {e.new.number: place for place, e in enumerate(events) if isinstance(e, Started) and e.new is not None}
    for event in asked:  # made ahead: right after the start before it
        assert started[event.number - 1] < events.index(event) < started[event.number]
    plain = live(begun(sweep_of(early_terminate=None, max_iter=1, run_cap=3)), 1, 0)
    assert not any(isinstance(event, Asked) for event in plain)


@pytest.mark.parametrize("what", ["params", "asked", "metric"])
def test_a_journal_that_another_search_wrote_is_refused(what):
    events: list[Event] = [OPENED, *live(begun(learning()), 2, 7)]
    place = [i for i, event in enumerate(events) if isinstance(event, Started) and event.new is not None][-1]
    started = events[place]
    assert isinstance(started, Started)
    assert started.new is not None
    if what == "params":
        events[place] = replace(started, new=replace(started.new, params={"x": 0.123}))
    elif what == "asked":
        del events[max(place for place, event in enumerate(events) if isinstance(event, Asked))]
    else:
        first = next(i for i, event in enumerate(events) if isinstance(event, Finished))
        finished = events[first]
        assert isinstance(finished, Finished)
        better = tuple(replace(report, metrics={"loss": -1.0}) for report in finished.reports)
        events[first] = replace(finished, reports=better)
    with pytest.raises(JournalError, match="the journal doesn't replay"):
        list(SweepState(learning()).replay(events))


@pytest.mark.parametrize(
    "early", [Population(9, members=3, interval=3), PBT(9, population=3, interval=3), SuccessiveHalving(9, trials=12)]
)
@pytest.mark.parametrize("workers", [1, 3])
def test_a_search_that_forks_is_resumed_and_goes_on_as_the_undisturbed_one(early, workers):
    sweep = learning(Family.kind, early_terminate=early, run_cap=14)
    whole = begun(sweep)
    events = live(whole, workers, 7)
    assert any(row.parent is not None for row in whole.rows())
    for cut in range(1, len(events), 3):
        resumed = SweepState(sweep)
        list(resumed.replay([OPENED, *events[:cut]]))
        resumed.prepare()
        for event in events[cut:]:
            if isinstance(event, Started):
                assert answered(resumed) == event
            resumed.apply(event)
        assert resumed.rows() == whole.rows()
        assert resumed.checkpoints() == whole.checkpoints()


def test_a_searcher_that_had_nothing_more_to_suggest_is_asked_so_again_on_resume():
    sweep = learning(Limited.kind, early_terminate=None, max_iter=1, run_cap=9)
    events = live(begun(sweep), 2, 7)
    assert sum(isinstance(event, Exhausted) for event in events) == 1
    made: list[Searcher] = []

    def calls_of(sweep: Sweep, searcher: Searcher, past: Sequence[Past] = ()):
        made.append(searcher)
        return direct_calls(sweep, searcher, past)

    list(SweepState(sweep, calls_of).replay([OPENED, *events]))
    (searcher,) = made
    assert isinstance(searcher, Limited)
    assert searcher.calls.count("asked 5") == 1
    with pytest.raises(JournalError, match="the journal doesn't replay"):
        list(SweepState(sweep).replay([OPENED, *[event for event in events if not isinstance(event, Asked)]]))


def test_in_a_process_of_its_own_it_suggests_the_same_and_the_journal_replays():
    sweep_state = SweepState(learning(), process_calls)
    sweep_state.apply(OPENED)
    events = live(sweep_state, 1, 3)
    sweep_state.close()
    assert events == live(begun(learning()), 1, 3)
    assert list(SweepState(learning()).replay([OPENED, *events]))


def test_what_happens_while_it_works_on_a_suggestion_is_told_after_that():
    """Whatever happens between a request and the answer, the answer is that of the request."""
    sweep_state = SweepState(learning(), process_calls)
    sweep_state.apply(OPENED)
    events = live(sweep_state, 3, 3)
    sweep_state.close()
    assert list(SweepState(learning()).replay([OPENED, *events]))


def test_where_no_suggestion_is_ready_a_trial_takes_a_random_point_and_the_suggestion_is_for_the_next():
    class Slow(DirectCalls):
        works = False

        def ready(self):
            return not self.works

    calls: list[Slow] = []

    def calls_of(sweep, searcher, past):
        calls.append(Slow(searcher))
        return calls[-1]

    sweep_state = begun_with(learning(points_to_try=()), calls_of)
    events: list[Event] = []

    def take(event: object) -> Any:
        assert isinstance(event, Asked | Started)
        sweep_state.apply(event)
        events.append(event)
        return event.new if isinstance(event, Started) else None

    take(Asked(0, None, 0))
    calls[0].works = True
    for stand_in in (False, True):  # nothing stands in for the first one
        assert isinstance(next(sweep_state.upcoming(stand_in)), Wait)
    assert sweep_state.is_searching
    calls[0].works = False
    assert take(sweep_state.next()).origin == "climbing"
    take(sweep_state.next())
    calls[0].works = True
    assert isinstance(sweep_state.next(), Wait)
    for number in (1, 2):
        new = take(next(sweep_state.upcoming(stand_in=True)))
        assert (new.number, new.origin) == (number, "stand_in")
    calls[0].works = False
    new = take(sweep_state.next())
    assert (new.number, new.origin) == (3, "climbing")
    assert sweep_state.next() == Asked(2, None, 0)
    for cut in range(len(events) + 1):
        resumed = SweepState(learning(points_to_try=()))
        assert len(list(resumed.replay([OPENED, *events[:cut]]))) == cut + 1
        resumed.prepare()
        for event in events[cut:]:
            resumed.apply(event)
        assert resumed.rows() == sweep_state.rows()


def test_a_point_that_a_stand_in_took_meanwhile_is_not_suggested_again():
    class Slow(DirectCalls):
        works = False

        def ready(self):
            return not self.works

    calls: list[Slow] = []

    def calls_of(sweep, searcher, past):
        calls.append(Slow(searcher))
        return calls[-1]

    sweep = sweep_of(
        method="tpe",
        parameters=Space.from_parameters({"x": [1, 2, 3, 4]}),
        search=Search(startup=1),
        early_terminate=None,
        max_iter=1,
        run_cap=9,
    )
    sweep_state = begun_with(sweep, calls_of)
    events: list[Event] = []
    while not isinstance(answer := next(sweep_state.upcoming(stand_in=True)), Exhausted):
        assert isinstance(answer, Asked | Started)
        sweep_state.apply(answer)
        events.append(answer)
        if calls:
            calls[0].works = len(sweep_state.rows()) == 2  # two stand-ins while the third is being worked out
    tried = [row.params["x"] for row in sweep_state.rows()]
    assert sorted(tried) == [1, 2, 3, 4]
    assert list(SweepState(sweep).replay([OPENED, *events]))


def begun_with(sweep: Sweep, calls_of) -> SweepState:
    sweep_state = SweepState(sweep, calls_of)
    sweep_state.apply(OPENED)
    return sweep_state


def search(path: Path, method: str, run_cap: int, backend: Literal["ray", "inline"] = "inline") -> str:
    """Run a sweep with a searcher that learns; return its table."""

    def train(trial: hpsearch.RunningTrial) -> None:
        for iteration in trial.iterations():
            trial.report({"loss": (trial.params["x"] - 0.3) ** 2 / iteration}, checkpoint={})

    study = hpsearch.search(
        train,
        parameters={"x": Uniform(0.0, 1.0)},
        metric="loss",
        method=method,
        search=Search(ahead=False),
        early_terminate=SuccessiveHalving(4, eta=2, trials=4),
        run_cap=run_cap,
        directory=path,
        backend=backend,
        resources={"workers": 1},
        observers=[],
        progress=False,
    )
    assert study.state == "finished"
    assert {row.origin for row in study.trials} == {"climbing"}
    return rows_to_csv(study.trials, study.sweep.parameters.names)


@pytest.mark.exhaustive
def test_a_sweep_that_learns_runs_beside_the_loop_and_is_extended(tmp_path, whole):
    assert whole.startswith(search(tmp_path / "grown", Climbing.kind, 4))
    assert search(tmp_path / "grown", Climbing.kind, 8) == whole
    assert [thread for thread in threading.enumerate() if "searcher" in thread.name] == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The table of a sweep of eight trials that nothing disturbs."""
    return search(tmp_path_factory.mktemp("whole") / "study", Climbing.kind, 8)


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("how", ["raises", "dies"])
def test_what_goes_wrong_with_it_ends_the_sweep_which_can_be_resumed(tmp_path, monkeypatch, how, whole):
    monkeypatch.setenv("TEST_SEARCHER_FAILS", how)
    told = {
        "raises": r"Failing\.suggest raised RuntimeError: no model",
        "dies": "exit code 7: resume .*; its last output:\nno more",
    }
    with pytest.raises(SearcherError, match=told[how]):
        search(tmp_path / "study", Failing.kind, 8)
    left = hpsearch.load(tmp_path / "study")
    assert left.state == "error"
    assert len(left.trials) == 3
    monkeypatch.setenv("TEST_SEARCHER_FAILS", "")
    assert search(tmp_path / "study", Failing.kind, 8) == whole


def test_what_goes_wrong_with_it_ends_a_simulated_sweep_with_an_error_in_its_journal(tmp_path, monkeypatch):
    monkeypatch.setenv("TEST_SEARCHER_FAILS", "raises")
    with pytest.raises(SearcherError, match=r"Failing\.suggest raised RuntimeError: no model"):
        hpsearch.search(
            Bowl,
            parameters={"x": Uniform(0.0, 1.0)},
            metric="loss",
            method=Failing.kind,
            max_iter=2,
            run_cap=8,
            limits={"max_failures": "none"},
            directory=tmp_path / "study",
            backend="simulated",
            resources={"workers": 1},
            observers=[],
            progress=False,
        )
    assert hpsearch.load(tmp_path / "study").state == "error"


def test_a_searcher_is_found_by_its_word_or_import_path():
    assert all(searcher_named(kind) is cls and cls.kind == kind for kind, cls in KNOWN.items())
    assert searcher_named(Climbing.kind) is Climbing
    for method, told in (
        ("climbing", "must be one of random, grid, .*, got 'climbing'"),
        ("no.such:Searcher", "no.such"),
        ("pathlib:Path", "derived from hpsearch.Searcher or a sampler of Optuna's"),
    ):
        with pytest.raises(SweepError, match=told):
            learning(method)
