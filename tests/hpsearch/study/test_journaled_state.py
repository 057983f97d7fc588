"""A study is read from its journal alone: what is told is what was lived through, and replaying decides the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.decision import Decision, Followed, PlanChange
from hpsearch.errors import JournalError
from hpsearch.events import Entry, Extended, Failed, Retried, Saved, Started
from hpsearch.journal.event_codec import decode, decode_followed, encode, encode_followed
from hpsearch.results.study import load
from hpsearch.study.extension import extended
from hpsearch.study.journaled_state import JournaledState
from hpsearch.study.state import SweepState
from hpsearch.trial import Failure, TrialState
from tests.hpsearch.support.lives import OPENED, Life, lives
from tests.hpsearch.support.scripted import ScriptedBackend, done, failed, run_scripted, sweep_of


def journaled(entry: Entry) -> Entry:
    """What the journal gives back of an entry."""
    return Entry(entry.time, decode(*encode(entry.event)), decode_followed(encode_followed(entry.followed)))


def told(state: SweepState | JournaledState) -> str:
    """All that a state tells; as text, in which NaN is equal to NaN."""
    total = state.total() if isinstance(state, SweepState) else state.total
    counts = sorted((+Counter(state.counts())).items())
    return repr((state.rows(), state.leaders(), counts, list(state.rungs()), total, state.iterations))


@settings(deadline=None, max_examples=35)
@given(lives())
def test_reading_each_prefix_of_a_journal_tells_what_living_through_it_told(life):
    read = JournaledState(life.sweep)
    going = True
    while going:
        known = len(life.entries)
        going = life.step()
        list(read.read(journaled(entry) for entry in life.entries[known:]))
        read.obsolete()
        if life.events:
            assert told(read) == told(life.sweep_state)
            assert read.records.segments() == life.sweep_state.running()
            assert read.records.checkpoints() <= life.sweep_state.checkpoints()
            # A journal doesn't tell what may still be forked.
            assert life.forks or read.records.checkpoints() == life.sweep_state.checkpoints()


@settings(deadline=None, max_examples=50)
@given(lives(), st.data())
def test_replaying_a_journal_decides_what_it_tells_and_anything_else_is_refused(life, data):
    life.run()
    entries = [journaled(entry) for entry in life.entries]
    assert repr(list(SweepState(life.sweep).resume(entries))) == repr(entries)
    place = data.draw(st.integers(0, len(entries) - 1))
    harmed = replace(entries[place], followed=Followed((Decision(0, "stop", "no"),), PlanChange((1, 1))))
    with pytest.raises(JournalError, match="followed, this sweep gives"):
        list(SweepState(life.sweep).resume([*entries[:place], harmed, *entries[place + 1 :]]))


@settings(deadline=None, max_examples=30)
@given(lives(trouble=False), st.integers(1, 30))
def test_an_extension_is_told_like_all_else(life, more):
    if life.sweep.run_cap is None:
        return
    life.run()
    event = Extended(life.sweep.run_cap + more)
    life.take(event)
    longer = Life(extended(life.sweep, event), life.seed, life.workers, 0.0)
    longer.sweep_state, longer.events, longer.entries = life.sweep_state, life.events, life.entries
    longer.find(life)
    longer.run()
    read = JournaledState(life.sweep)
    list(read.read(map(journaled, longer.entries)))
    read.obsolete()
    assert told(read) == told(longer.sweep_state)


def test_a_failure_that_is_taken_back_is_told_before_the_trial_runs_again():
    life = Life(sweep_of(early_terminate=None, max_iter=3, run_cap=2), 0, 1, 0.0)
    life.take(OPENED)
    start = life.sweep_state.next()
    assert isinstance(start, Started)
    life.take(start)
    life.take(Failed(0, 1, Failure("raised", "ValueError: no", ""), False, ()))
    life.take(Retried(0))
    read = JournaledState(life.sweep)
    list(read.read(map(journaled, life.entries)))
    assert [row.state for row in read.rows()] == [TrialState.WAITING]
    assert read.rungs()[0].finished == 0


@pytest.mark.parametrize("event", [Saved(0, 2, 1, "c", ()), Saved(7, 1, 1, "c", ())])
def test_an_event_of_an_attempt_that_doesnt_run_is_one_error(event):
    life = Life(sweep_of(), 0, 1, 0.0)
    for _ in range(2):
        life.step()
    with pytest.raises(JournalError, match="can't have happened there: that attempt doesn't run"):
        list(JournaledState(life.sweep).read([*life.entries, Entry(1.0, event, Followed())]))


def test_a_decision_on_a_trial_that_isnt_there_is_one_error():
    entry = Entry(1.0, OPENED, Followed((Decision(3, "stop", "no"),)))
    with pytest.raises(JournalError, match="can't have happened there"):
        list(JournaledState(sweep_of()).read([entry]))


def test_loading_builds_neither_searcher_nor_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    backend = ScriptedBackend(lambda task: [failed(task)] if task.trial.number == 1 else [done(task)], workers=2)
    study = run_scripted(tmp_path / "s", sweep_of(), backend)
    shown = study.trials, study.rungs, study.total, study.best_trial

    def refuse(*_: object) -> None:
        raise AssertionError("loading needs none")

    for name in ("hpsearch.study.state.build_scheduler", "hpsearch.study.suggestions.build_searcher"):
        monkeypatch.setattr(name, refuse)
    again = load(tmp_path / "s")
    assert (again.trials, again.rungs, again.total, again.best_trial) == shown
