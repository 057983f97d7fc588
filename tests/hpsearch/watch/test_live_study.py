"""What a study shows as it goes on is what reading its whole journal tells."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.decision import Followed
from hpsearch.errors import JournalError
from hpsearch.events import ASK_TELL, Ended, Entry, Event, Opened, Pruned, Steered
from hpsearch.study.journaled_state import JournaledState
from hpsearch.sweep.parts import Resources
from hpsearch.trial import TrialRow, TrialState
from hpsearch.watch.app import header_lines
from hpsearch.watch.live_study import LiveStudy, Looked
from tests.hpsearch.support.lives import OPENED, Life, lives
from tests.hpsearch.support.scripted import sweep_of

HOLDER = "ann@box:7"


def shown(rows: list[TrialRow]) -> list[str]:
    """Rows as text, in which NaN is equal to NaN; when a checkpoint is let go is seen by who writes alone."""
    return [repr(replace(row, checkpoint=None)) for row in rows]


def begun(life: Life, count: int, holder: str | None = HOLDER) -> LiveStudy:
    return LiveStudy(Looked(life.entries[:count], holder, {"sweep": life.sweep.to_json()}))


def entry(event: Event, when: float = 1e6) -> Entry:
    return Entry(when, event, Followed())


@settings(max_examples=35)
@given(lives(), st.lists(st.integers(0, 7), max_size=30))
def test_however_one_looks_at_it_the_rows_are_those_of_the_whole_journal(life, steps):
    life.run()
    at = steps[0] if steps else 0
    study = begun(life, at)
    for step in [*steps[1:], len(life.entries)]:
        before = shown(study.rows)
        changed = study.take(Looked(life.entries[at : at + step], HOLDER))
        at += step
        whole = JournaledState(study.sweep)
        for _ in whole.read(life.entries[:at]):
            pass
        assert shown(study.rows) == shown(whole.rows())
        after = shown(study.rows)
        assert {trial for trial in range(len(after)) if [after[trial]] != before[trial : trial + 1]} <= changed
        assert [row.number for row in study.journaled.leaders()] == [row.number for row in whole.leaders()]
        assert study.workers.busy == sum(segment.width for segment in whole.records.segments())
        assert list(header_lines(study, "runs/x"))


def test_one_that_was_killed_has_nothing_that_runs_and_goes_on_when_it_is_resumed():
    life = Life(sweep_of(), 0, 4, 0.0)
    while len(life.sweep_state.running()) < 4:
        life.step()
    study = begun(life, len(life.entries))
    assert (study.ended.state, study.journaled.counts()[TrialState.RUNNING], study.workers.busy) == ("running", 4, 4)
    assert study.take(Looked((), None)) == {0, 1, 2, 3}
    assert (study.ended.state, study.journaled.counts()[TrialState.RUNNING], study.workers.busy) == ("killed", 0, 0)
    assert "hpsearch resume runs/x" in "\n".join(line.plain for line in header_lines(study, "runs/x"))
    known = len(life.entries)
    life.take(OPENED)
    life.run()
    study.take(Looked(life.entries[known:], HOLDER))
    assert shown(study.rows) == shown(life.sweep_state.rows())


def test_one_that_was_wrongly_taken_for_killed_says_so_and_is_right_when_read_anew():
    life = Life(sweep_of(), 0, 4, 0.0)
    while len(life.sweep_state.running()) < 4:
        life.step()
    study, known = begun(life, len(life.entries), holder=None), len(life.entries)
    life.run()
    with pytest.raises(JournalError, match="can't have happened"):
        study.take(Looked(life.entries[known:], HOLDER))
    study.take(Looked(life.entries, HOLDER, {"sweep": life.sweep.to_json()}))
    assert shown(study.rows) == shown(life.sweep_state.rows())


def test_of_one_that_was_killed_what_was_pruned_has_stopped_and_one_that_was_cancelled_is_so_at_once():
    life = Life(sweep_of(), 0, 4, 0.0)
    while len(life.sweep_state.running()) < 4:
        life.step()
    life.take(Steered("prune", "bo@box:3", 5))
    life.take(Pruned(2, "pruned by bo@box"))
    study, known = begun(life, len(life.entries)), len(life.entries)
    assert study.rows[2].state is TrialState.RUNNING
    assert study.take(Looked((), None)) == {0, 1, 2, 3}
    assert (study.rows[2].state, study.rows[2].reason) == (TrialState.STOPPED, "pruned by bo@box")
    assert (study.ended.state, study.journaled.counts()[TrialState.STOPPED]) == ("killed", 1)
    life.take(OPENED)
    life.run()
    study.take(Looked(life.entries[known:], HOLDER))
    assert shown(study.rows) == shown(life.sweep_state.rows())
    cancelled = begun(life, known)
    cancelled.take(Looked([entry(Steered("cancel", "bo@box:3", 6))], HOLDER))
    assert cancelled.ended.state == "cancelled"
    cancelled.take(Looked((), None))
    assert cancelled.ended.state == "cancelled"


def test_its_state_follows_what_is_asked_and_who_runs_it():
    life = Life(sweep_of(), 0, 1, 0.0)
    study = begun(life, 0, holder=None)
    assert study.ended.state == "not begun"
    study.take(Looked([entry(OPENED), entry(Steered("pause", "bo@box:3", 5))], HOLDER))
    assert study.ended.state == "paused"
    assert "by bo@box" in study.ended.message
    assert study.answers[5].verb == "pause"
    study.take(Looked((), None))
    assert study.ended.state == "killed"
    study.take(Looked([entry(OPENED), entry(Ended("stopped"))], None))
    assert study.ended.state == "stopped"


def test_trials_that_are_asked_for_stay_open_without_a_process():
    life = Life(sweep_of(), 0, 2, 0.0)
    life.take(Opened(ASK_TELL, None, "", ""))
    life.step()
    study = begun(life, len(life.entries), holder=None)
    assert (study.ended.state, study.journaled.counts()[TrialState.RUNNING]) == ("open", 1)


@pytest.mark.parametrize("resumed", [False, True], ids=["first run", "resumed"])
def test_the_time_left_is_that_of_a_first_run_which_has_the_limits_that_were_recorded(resumed):
    life = Life(sweep_of(early_terminate=None, max_iter=2, run_cap=12), 0, 1, 0.0)
    while len(life.sweep_state.rows()) < 7:
        life.step()
    entries = [replace(one, time=place / 2) for place, one in enumerate(life.entries)]
    begin = [entry(OPENED, 0.0), *([entry(OPENED, 0.0)] if resumed else [])]
    study = LiveStudy(Looked([*begin, *entries[1:]], HOLDER, {"sweep": life.sweep.to_json()}))
    left = study.remaining(now=entries[-1].time)
    if resumed:
        assert left is None
    else:
        assert left == pytest.approx(6.0, rel=0.3)  # six trials of a second each


@pytest.mark.parametrize(("workers", "told"), [(2, "4 trials on 2 workers"), (None, "4 trials at once")])
def test_where_workers_train_several_trials_it_says_how_many_run(workers, told):
    life = Life(sweep_of(resources=Resources(trials_per_worker=16)), 0, 4, 0.0)
    while len(life.sweep_state.running()) < 4:
        life.step()
    entries = [
        replace(one, event=replace(one.event, workers=workers)) if isinstance(one.event, Opened) else one
        for one in life.entries
    ]
    study = LiveStudy(Looked(entries, HOLDER, {"sweep": life.sweep.to_json()}))
    lines = [line.plain for line in header_lines(study, "runs/x")]
    assert any(line.endswith(told) for line in lines), lines
