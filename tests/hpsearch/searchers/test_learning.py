"""A search that learns is resumed from its journal: checked, and going on as before."""

from __future__ import annotations

import itertools
import random
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

import hpsearch
from hpsearch.errors import JournalError, SweepError
from hpsearch.events import Event, Exhausted, Finished, Opened, Started
from hpsearch.report.tables import rows_to_csv
from hpsearch.run.off_loop import OffLoop
from hpsearch.schedulers.base import Done, Wait
from hpsearch.schedulers.successive_halving import SuccessiveHalving
from hpsearch.searchers import KNOWN, NotYet, searcher_named
from hpsearch.space import Space, Uniform
from hpsearch.study.state import StudyState
from hpsearch.study.suggestions import Suggestions
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import Report, Trial
from tests.hpsearch.support.climbing import Climbing, Hesitant, Limited
from tests.hpsearch.support.family import Family, HesitantFamily
from tests.hpsearch.support.population import Population
from tests.hpsearch.support.scripted import sweep_of

OPENED = Opened("inline", 1, "me@here:1", "test")


def learning(method: str = Climbing.kind, **changes: object) -> Sweep:
    given: dict[str, object] = {
        "method": method,
        "parameters": Space.from_parameters({"x": Uniform(0.0, 1.0)}),
        "points_to_try": ({"x": 0.75},),
        "early_terminate": SuccessiveHalving(9, trials=12),
    }
    return sweep_of(**{**given, **changes})


def live(study_state: StudyState, workers: int, seed: int, events: int | None = None) -> list[Event]:
    """Let a sweep go on, ending what runs in any order; give what happened."""
    chance = random.Random(seed)
    happened: list[Event] = []
    while events is None or len(happened) < events:
        answer = study_state.next() if len(study_state.running()) < workers else Wait()
        if isinstance(answer, Done):
            break
        event: Event
        if not isinstance(answer, Wait):
            event = answer
        else:
            if not study_state.running():
                continue  # the searcher works on it
            segment = chance.choice(list(study_state.running()))
            x = study_state.record(segment.trial).trial.params["x"]
            reports = tuple(
                Report(segment.trial, i, {"loss": (x - 0.3) ** 2 / i}, 0.1)
                for i in range(segment.start + 1, (segment.end or 1) + 1)
            )
            event = Finished(segment.trial, segment.attempt, segment.end or 1, None, reports, False, 1.0)
        study_state.apply(event)
        happened.append(event)
    return happened


def begun(sweep: Sweep) -> StudyState:
    study_state = StudyState(sweep)
    study_state.apply(OPENED)
    return study_state


def test_what_it_suggests_follows_from_what_it_observed():
    one, other = begun(learning()), begun(learning())
    assert live(one, 3, 1) == live(other, 3, 1)
    assert one.rows() != begun(learning()).rows()
    best = one.best()
    assert best is not None
    assert abs(best.params["x"] - 0.3) < 0.1
    assert {row.origin for row in one.rows()} == {"points_to_try", "climbing"}


@pytest.mark.parametrize("cut", range(1, 30, 4))
@pytest.mark.parametrize("workers", [1, 4])
def test_a_resumed_search_goes_on_as_the_undisturbed_one(cut, workers):
    whole = begun(learning())
    events = live(whole, workers, 7)
    resumed = StudyState(learning())
    for _ in resumed.replay([OPENED, *events[:cut]]):
        pass
    again = begun(learning())
    for event in events[:cut]:
        again.apply(event)
    for event in events[cut:]:
        if isinstance(event, Started):
            assert resumed.next() == event
        resumed.apply(event)
    assert resumed.rows() == whole.rows()


def test_the_journal_says_how_much_each_suggestion_had_seen():
    events = live(begun(learning()), 4, 7)
    seen = [event.seen or 0 for event in events if isinstance(event, Started) and event.new is not None]
    assert seen[:4] == [0, 1, 2, 3]  # the four starts are all that could be seen
    assert all(one <= other for one, other in itertools.pairwise(seen))
    plain = live(begun(sweep_of(early_terminate=None, max_iter=1, run_cap=3)), 1, 0)
    assert all(event.seen is None for event in plain if isinstance(event, Started))


@pytest.mark.parametrize("what", ["params", "seen", "metric"])
def test_a_journal_that_another_search_wrote_is_refused(what):
    events: list[Event] = [OPENED, *live(begun(learning()), 2, 7)]
    place = [i for i, event in enumerate(events) if isinstance(event, Started) and event.new is not None][-1]
    started = events[place]
    assert isinstance(started, Started)
    assert started.new is not None
    if what == "params":
        events[place] = replace(started, new=replace(started.new, params={"x": 0.123}))
    elif what == "seen":
        events[place] = replace(started, seen=10_000)
    else:
        first = next(i for i, event in enumerate(events) if isinstance(event, Finished))
        finished = events[first]
        assert isinstance(finished, Finished)
        better = tuple(replace(report, metrics={"loss": -1.0}) for report in finished.reports)
        events[first] = replace(finished, reports=better)
    with pytest.raises(JournalError, match="the journal doesn't replay"):
        list(StudyState(learning()).replay(events))


@pytest.mark.parametrize("early", [Population(9, members=3, interval=3), SuccessiveHalving(9, trials=12)])
@pytest.mark.parametrize("kind", [Family.kind, HesitantFamily.kind])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_search_that_forks_is_resumed_and_goes_on_as_the_undisturbed_one(early, kind, workers):
    sweep = learning(kind, early_terminate=early, run_cap=14)
    whole = begun(sweep)
    events = live(whole, workers, 7)
    assert any(row.parent is not None for row in whole.rows())
    # Where the searcher works on nothing: resumed elsewhere, it is asked anew, with all that happened meanwhile.
    for cut in [at for at, event in enumerate(events, 1) if isinstance(event, Started) and event.new is not None]:
        resumed = StudyState(sweep, OffLoop)
        list(resumed.replay([OPENED, *events[:cut]]))
        for event in events[cut:]:
            answer = resumed.next() if len(resumed.running()) < workers else Wait()  # asked when the other one was
            if isinstance(event, Started):
                while isinstance(answer, Wait):
                    answer = resumed.next()
                assert answer == event
            resumed.apply(event)
        assert resumed.rows() == whole.rows()
        resumed.close()


def test_nothing_is_asked_before_what_the_searcher_works_on():
    """In a replay it would be asked in the order of the starts, and might go on otherwise."""
    suggestions = Suggestions(learning(HesitantFamily.kind, early_terminate=Population(9)))
    parent = Trial(0, {"x": 0.5}, 0, "family")
    assert isinstance(suggestions.suggest(3)[0], NotYet)
    with pytest.raises(ValueError, match=r"must stay the next one.*\(3, None\) became \(3, 0\)"):
        suggestions.suggest(3, parent)
    while isinstance(suggestions.suggest(3)[0], NotYet):
        pass
    assert isinstance(suggestions.suggest(4, parent)[0], NotYet)


def test_a_searcher_that_had_nothing_more_to_suggest_is_asked_so_again_on_resume():
    sweep = learning(Limited.kind, early_terminate=None, max_iter=1, run_cap=9)
    whole = begun(sweep)
    events = live(whole, 2, 7)
    (exhausted,) = [event for event in events if isinstance(event, Exhausted)]
    assert exhausted.seen is not None
    resumed = StudyState(sweep)
    list(resumed.replay([OPENED, *events]))
    searcher = resumed._suggestions._points.searcher
    assert isinstance(searcher, Limited)
    assert searcher.calls.count("asked 5") == 1
    late = [replace(event, seen=10_000) if isinstance(event, Exhausted) else event for event in events]
    with pytest.raises(JournalError, match="the journal doesn't replay"):
        list(StudyState(sweep).replay([OPENED, *late]))


def test_a_searcher_that_takes_its_time_suggests_the_same():
    quick = live(begun(learning()), 1, 3)
    slow = live(begun(learning(Hesitant.kind)), 1, 3)
    assert [event for event in slow if isinstance(event, Started)] == [
        event for event in quick if isinstance(event, Started)
    ]
    assert list(StudyState(learning(Hesitant.kind)).replay([OPENED, *slow]))


def test_off_the_loop_it_suggests_the_same_and_the_journal_replays():
    made: list[OffLoop] = []

    def wrap(searcher):
        made.append(OffLoop(searcher))
        return made[-1]

    study_state = StudyState(learning(), wrap)
    study_state.apply(OPENED)
    events = live(study_state, 1, 3)
    assert events == live(begun(learning()), 1, 3)
    assert list(StudyState(learning()).replay([OPENED, *events]))
    assert list(StudyState(learning(), wrap).replay([OPENED, *events]))
    for off_loop in made:
        off_loop.close()


def test_what_happens_while_it_works_on_a_suggestion_is_told_after_that():
    def wrap(searcher):
        suggest = searcher.suggest

        def suggest_late(number):
            time.sleep(0.01)
            return suggest(number)

        searcher.suggest = suggest_late
        return OffLoop(searcher)

    study_state = StudyState(learning(), wrap)
    study_state.apply(OPENED)
    events = live(study_state, 3, 3)
    study_state.close()
    assert list(StudyState(learning()).replay([OPENED, *events]))


def search(path: Path, method: str, run_cap: int, backend: Literal["ray", "inline"] = "inline") -> str:
    """Run a sweep with a searcher that learns; give its table."""

    def train(trial: hpsearch.RunningTrial) -> None:
        for iteration in trial.iterations():
            trial.report({"loss": (trial.params["x"] - 0.3) ** 2 / iteration}, checkpoint={})

    study = hpsearch.search(
        train,
        parameters={"x": Uniform(0.0, 1.0)},
        metric="loss",
        method=method,
        early_terminate=SuccessiveHalving(4, eta=2, trials=4),
        run_cap=run_cap,
        directory=path,
        backend=backend,
        workers=1,
        tensorboard=False,
        progress=False,
    )
    assert study.state == "finished"
    assert {row.origin for row in study.trials} == {"climbing"}
    return rows_to_csv(study.trials, study.sweep.parameters.names)


def test_a_sweep_that_learns_runs_beside_the_loop_and_is_extended(tmp_path):
    whole = search(tmp_path / "whole", Climbing.kind, 8)
    assert search(tmp_path / "again", Hesitant.kind, 8) == whole
    assert whole.startswith(search(tmp_path / "grown", Climbing.kind, 4))
    assert search(tmp_path / "grown", Climbing.kind, 8) == whole
    assert [thread for thread in threading.enumerate() if "searcher" in thread.name] == []


def test_what_it_raises_reaches_the_sweep():
    class Broken(Climbing):
        def observe(self, observation):
            raise RuntimeError("no model")

    off_loop = OffLoop(Broken(Space.from_parameters({"x": Uniform(0.0, 1.0)}), 0))
    off_loop.observe(None)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="no model"):
        next(answer for _ in itertools.count() if not isinstance(answer := off_loop.suggest(0), NotYet))
    off_loop.close()


def test_a_searcher_is_found_by_its_word_or_import_path():
    assert all(searcher_named(kind) is cls and cls.kind == kind for kind, cls in KNOWN.items())
    assert searcher_named(Climbing.kind) is Climbing
    for method, told in (
        ("climbing", "must be random or grid, got 'climbing'"),
        ("no.such:Searcher", "no.such"),
        ("pathlib:Path", "derived from hpsearch.Searcher"),
    ):
        with pytest.raises(SweepError, match=told):
            learning(method)
