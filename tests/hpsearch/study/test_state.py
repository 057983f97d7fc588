from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.config.checks import InvalidKey
from hpsearch.errors import JournalError, SweepError
from hpsearch.events import Ended, Event, Exhausted, Extended, Failed, Finished, Lost, Retried, Saved, Started
from hpsearch.schedulers.base import Done
from hpsearch.schedulers.halving import Hyperband
from hpsearch.space import Space, Uniform
from hpsearch.study.extension import extended, extension
from hpsearch.study.state import SweepState
from hpsearch.study.trial_records import owner_of
from hpsearch.sweep.sweep import Sweep
from hpsearch.trainable.addresses import path_of
from hpsearch.trial import Failure, Report, TrialRow, TrialState
from tests.hpsearch.support.lives import OPENED, Life, lives, sweeps
from tests.hpsearch.support.scripted import sweep_of

ENDED = {TrialState.COMPLETE, TrialState.STOPPED, TrialState.FAILED}


def best_of(rows: list[TrialRow], sweep: Sweep) -> TrialRow | None:
    """The best of these rows, found the slow way."""
    sign = 1 if sweep.objective.goals[0].goal == "minimize" else -1
    valued = [row for row in rows if row.value is not None]
    return min(valued, key=lambda row: (sign * (row.value or 0.0), row.number), default=None)


def value_of(life: Life, trial: int) -> float | None:
    """The value of a trial that hasn't failed, from all that was ever said of it."""
    reports: list[Report] = []
    sound: list[Report] = []
    for event in life.events:
        if isinstance(event, Saved | Finished | Failed) and event.trial == trial:
            sound = list(reports)
            reports += [r for r in event.reports if not reports or r.iteration >= reports[-1].iteration]
        if isinstance(event, Retried) and event.trial == trial:
            reports = sound
    values = [report.metrics["loss"] for report in reports if not math.isnan(report.metrics["loss"])]
    if life.sweep.objective.goals[0].scope == "best":
        choose = min if life.sweep.objective.goals[0].goal == "minimize" else max
        return choose(values, default=None)
    return values[-1] if values and not math.isnan(reports[-1].metrics["loss"]) else None


def checkpoint_of(life: Life, row: TrialRow) -> str | None:
    """The checkpoint that the attempt that gave the trial its value wrote there; another may report the same."""
    result = life.sweep_state.record(row.number).result
    found = None
    for event in life.events:
        if not isinstance(event, Saved | Finished) or event.trial != row.number:
            continue
        if (event.attempt, event.iteration) == (result.value_attempt, row.value_iteration):
            (report,) = [report for report in event.reports if report.iteration == event.iteration]
            found = event.checkpoint if report.metrics["loss"] in (result.score,) else None  # NaN is itself
    return found


def state(sweep_state: SweepState) -> object:
    return (
        sweep_state.rows(),
        sweep_state.leaders(),
        +Counter(sweep_state.counts()),
        sweep_state.running(),
        list(sweep_state.rungs()),
        sweep_state.total(),
    )


@settings(deadline=None, max_examples=35)
@given(lives(joint=False))
def test_no_checkpoint_goes_that_is_needed_and_in_the_end_those_of_the_best_and_the_failed_are_left(life):
    sweep_state = life.sweep_state
    while life.step():
        rows = sweep_state.rows()
        assert sweep_state.checkpoints() == life.on_disk
        # A row names the one of its value; a trial that failed behind its newest checkpoint has none there.
        assert {row.address for row in rows} - {None} <= life.on_disk
        best = best_of([row for row in rows if row.state in ENDED], life.sweep)
        for row in rows:
            if row.state not in ENDED - {TrialState.FAILED} or row == best:
                expected = checkpoint_of(life, row)
                assert row.address == (None if expected in life.damaged_ones else expected)
                assert row.checkpoint == (row.address and path_of(row.address))
            if row.state is not TrialState.FAILED:
                assert row.value == value_of(life, row.number)
        best = best_of(rows, life.sweep)
        assert sweep_state.leaders() == ([] if best is None else [best])
    assert len(life.discarded) == len(set(life.discarded))
    assert {row.state for row in sweep_state.rows()} <= ENDED
    best = next(iter(sweep_state.leaders()), None)
    kept = {row.number for row in sweep_state.rows() if row.state is TrialState.FAILED}
    kept |= {best.number} if best is not None else set()
    assert life.forks or {owner_of(checkpoint) for checkpoint in life.on_disk} <= kept
    assert best is None or best.address is None or best.address in life.on_disk


@settings(deadline=None, max_examples=50)
@given(lives(keep="all"))
def test_keep_all_keeps_all(life):
    life.run()
    assert life.discarded == []


@settings(deadline=None, max_examples=40)
@given(lives(), st.data())
def test_replaying_any_prefix_gives_what_living_through_it_gave(life, data):
    states = []
    while life.step():
        states.append(state(life.sweep_state))
    for _ in range(3):
        length = data.draw(st.integers(0, len(life.events)))
        sweep_state = SweepState(life.sweep)
        replayed = list(sweep_state.replay(life.events[:length]))
        assert [event for event, _ in replayed] == life.events[:length]
        if length:
            assert state(sweep_state) == states[length - 1]
        # and it goes on from there as the first life did
        list(sweep_state.replay(life.events[length:]))
        assert state(sweep_state) == state(life.sweep_state)


@settings(deadline=None, max_examples=40)
@given(lives(settled=True), st.integers(1, 8), st.integers(0, 99))
def test_resuming_on_another_number_of_workers_ends_with_the_same_table(life, workers, cut_at):
    """Values are a function of trial and iteration here; whatever happened, they come out again."""

    def value(trial: int, iteration: int) -> float:
        return (trial * 31 % 7) / iteration

    names = life.sweep.objective.names

    def live(life: Life) -> Life:
        life.reports = lambda trial, start, end: tuple(  # type: ignore[method-assign]
            replace(report, metrics={name: value(trial + 3 * at, report.iteration) for at, name in enumerate(names)})
            for report in Life.reports(life, trial, start, end)
        )
        return life

    calm = live(Life(life.sweep, life.seed, 1, 0.0, life.saves)).run()
    former = live(Life(life.sweep, life.seed, life.workers, 0.0, life.saves))
    for _ in range(cut_at):
        if not former.step():
            break
    resumed = live(Life(life.sweep, life.seed + 1, workers, 0.0, life.saves))
    resumed.find(former)
    list(resumed.sweep_state.replay(former.events))
    resumed.take(OPENED)
    resumed.run()

    def table(sweep_state: SweepState) -> list[TrialRow]:
        return [replace(row, checkpoint=None, seconds=0.0, reason="") for row in sweep_state.rows()]

    assert table(resumed.sweep_state) == table(calm.sweep_state)


def started(sweep_state: SweepState) -> Started:
    event = sweep_state.next()
    assert isinstance(event, Started)
    sweep_state.apply(event)
    return event


def test_a_lost_attempt_is_owed_again_from_its_newest_checkpoint_before_anything_new():
    sweep_state = SweepState(sweep_of(early_terminate=None, run_cap=5, max_iter=9))
    sweep_state.apply(OPENED)
    first, second = started(sweep_state), started(sweep_state)
    sweep_state.apply(Saved(1, 1, 4, "c4", ()))
    sweep_state.apply(Lost(1, 1, "died"))
    sweep_state.apply(Lost(0, 1, "died"))
    assert [row.state for row in sweep_state.rows()] == [TrialState.WAITING] * 2
    again = started(sweep_state)
    assert again.segment == replace(first.segment, attempt=2)
    again = started(sweep_state)
    assert again.segment == replace(second.segment, attempt=2, start=4, checkpoint="c4")
    assert again.new is None
    assert started(sweep_state).segment.trial == 2


def test_those_with_a_company_are_owed_first_and_a_journal_that_has_them_by_number_replays():
    """That was the order of former versions: whoever begins first changes nothing."""
    sweep = sweep_of(early_terminate=None, run_cap=6, max_iter=9)
    sweep_state = SweepState(sweep)
    events: list[Event] = [OPENED, *(started(sweep_state) for _ in range(5))]
    events.append(Lost(4, 1, "died", False, then="alone"))
    events += [Lost(trial, 1, "died", False, then="halved", company=(1, 3)) for trial in (1, 3)]
    events += [Lost(trial, 1, "died") for trial in (0, 2)]
    for event in events[6:]:
        sweep_state.apply(event)
    assert sweep_state.restricted_count() == 3
    again = [started(sweep_state) for _ in range(5)]
    assert [start.segment.trial for start in again] == [1, 3, 4, 0, 2]
    assert (sweep_state.restricted_count(), started(sweep_state).segment.trial) == (0, 5)
    by_number = sorted(again, key=lambda start: start.segment.trial)
    list(SweepState(sweep).replay([*events, *by_number]))
    with pytest.raises(JournalError, match="where this sweep gives Started"):
        list(SweepState(sweep).replay([*events, replace(again[0], segment=replace(again[0].segment, start=1))]))


def test_saving_is_progress_so_losses_in_a_row_begin_anew():
    sweep_state = SweepState(sweep_of(early_terminate=None, run_cap=1, max_iter=9))
    sweep_state.apply(OPENED)
    started(sweep_state)
    sweep_state.apply(Lost(0, 1, "died"))
    started(sweep_state)
    assert sweep_state.record(0).losses == 1
    sweep_state.apply(Saved(0, 2, 4, "c4", ()))
    sweep_state.apply(Lost(0, 2, "died"))
    assert sweep_state.record(0).losses == 1


def test_a_cut_segment_is_owed_from_where_it_was_cut_and_nothing_is_decided():
    sweep_state = SweepState(sweep_of(early_terminate=None, run_cap=1, max_iter=9))
    sweep_state.apply(OPENED)
    segment = started(sweep_state).segment
    assert sweep_state.apply(Finished(0, 1, 4, "c4", (), True, 1.0)).decisions == ()
    assert started(sweep_state).segment == replace(segment, start=4, checkpoint="c4", attempt=2)
    # cut at the very end is an end like any other
    (decision,) = sweep_state.apply(Finished(0, 2, 9, "c9", (), True, 1.0)).decisions
    assert decision.action == "complete"
    assert sweep_state.next() == Done()


def test_opening_or_ending_owes_everything_that_ran():
    for event in (OPENED, Ended("interrupted")):
        sweep_state = SweepState(sweep_of())
        sweep_state.apply(OPENED)
        segments = [started(sweep_state).segment for _ in range(3)]
        assert not sweep_state.idle
        sweep_state.apply(event)
        assert sweep_state.idle
        assert [started(sweep_state).segment for _ in range(3)] == [replace(s, attempt=2) for s in segments]


def test_a_retry_is_owed_again_and_its_reports_dont_count():
    sweep_state = SweepState(sweep_of(early_terminate=None, run_cap=1, max_iter=2))
    sweep_state.apply(OPENED)
    started(sweep_state)
    sweep_state.apply(Failed(0, 1, Failure("raised", "no", ""), True, ()))
    assert sweep_state.rows()[0].state is TrialState.WAITING
    assert sweep_state.record(0).failures == 1
    assert started(sweep_state).segment.attempt == 2
    sweep_state.apply(Failed(0, 2, Failure("raised", "no", ""), False, ()))
    assert sweep_state.rows()[0].state is TrialState.FAILED
    assert sweep_state.next() == Done()


def test_a_trial_that_is_retried_stands_where_it_stood_before_with_nothing_of_what_its_failure_reported():
    sweep_state = SweepState(sweep_of(early_terminate=None, run_cap=1, max_iter=4))
    sweep_state.apply(OPENED)
    started(sweep_state)
    sweep_state.apply(Saved(0, 1, 1, "one", (Report(0, 1, {"loss": 9.0}, 1.0),)))
    sweep_state.apply(Failed(0, 1, Failure("raised", "no", ""), False, (Report(0, 2, {"loss": 1.0}, 1.0),)))
    assert sweep_state.rows()[0].metrics == {"loss": 1.0}
    sweep_state.apply(Retried(0))
    row = sweep_state.rows()[0]
    assert (row.iterations, row.value, row.metrics) == (1, 9.0, {"loss": 9.0})


def test_an_exhausted_grid_says_so_once_and_ends():
    life = Life(sweep_of(method="grid", parameters=_grid(4)), 0, 3, 0.0).run()
    assert [type(event) for event in life.events].count(Exhausted) == 1
    assert len(life.sweep_state.rows()) == 4
    assert life.sweep_state.total() == (4, life.sweep_state.iterations)


def _grid(points: int) -> Space:
    return Space.from_parameters({"x": Uniform(0.0, 1.0, points=points)})


@settings(deadline=None, max_examples=35)
@given(lives(), sweeps(), st.integers(0, 200))
def test_an_extension_that_the_sweep_accepts_is_one_that_its_course_can_take_at_any_time(life, wish, steps):
    """Or else the user would hear of it when it stands in the journal."""
    first = life.sweep
    early, wanted = first.early_terminate, wish.early_terminate
    if isinstance(early, Hyperband) and isinstance(wanted, Hyperband):
        early = replace(early, brackets=wanted.brackets)
    for _ in range(steps):
        if not life.step():
            break
    try:
        asked = replace(life.sweep, run_cap=wish.run_cap or life.sweep.run_cap, early_terminate=early)
        more = extension(life.sweep, asked)
    except (SweepError, InvalidKey):
        return
    before = len(life.sweep_state.rows())
    if more is None:
        return
    life.take(more)
    life.sweep = extended(life.sweep, more)
    assert life.sweep.difference(asked) == []
    life.run()
    assert len(life.sweep_state.rows()) >= before
    replayed = SweepState(first)
    list(replayed.replay(life.events))
    assert state(replayed) == state(life.sweep_state)


def _events() -> list[Event]:
    return Life(sweep_of(), 3, 2, 0.0).run().events


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (sweep_of(seed=1), "where this sweep gives Started"),
        (sweep_of(early_terminate=Hyperband(27)), "where this sweep gives Started"),
        (sweep_of(early_terminate=None, max_iter=9, run_cap=1), "where this sweep gives "),
    ],
)
def test_a_journal_of_another_sweep_doesnt_replay(other, told):
    with pytest.raises(JournalError, match=told):
        list(SweepState(other).replay(_events()))


@pytest.mark.parametrize(
    ("place", "event", "told"),
    [
        (-1, Lost(0, 1, ""), "that attempt doesn't run"),
        (-1, Finished(99, 1, 1, None, (), False, 1.0), "that attempt doesn't run"),
        (2, Saved(0, 2, 1, "c", ()), "that attempt doesn't run"),
        (2, Exhausted(), "where this sweep gives Wait"),
        (-1, Extended(3), "bounds can only be raised"),
    ],
)
def test_events_that_cant_have_happened_dont_replay(place, event, told):
    events = _events()
    events.insert(place if place >= 0 else len(events), event)
    with pytest.raises(JournalError, match=told):
        list(SweepState(sweep_of()).replay(events))


def test_a_missing_event_is_noticed():
    events = _events()
    first_finish = next(place for place, event in enumerate(events) if isinstance(event, Finished))
    del events[first_finish]
    with pytest.raises(JournalError, match="doesn't replay"):
        list(SweepState(sweep_of()).replay(events))
