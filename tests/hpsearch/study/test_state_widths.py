"""Lives in which trials run on several workers, some of them go wrong on more than before, and are taken back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpsearch.decision import Decision
from hpsearch.errors import JournalError
from hpsearch.events import Dropped, Event, Finished, Retried, Reverted, Saved, Started
from hpsearch.schedulers.halving import Hyperband, SuccessiveHalving
from hpsearch.study.state import SweepState
from hpsearch.study.trial_records import owner_of
from hpsearch.sweep.parts import Metric, Resources
from hpsearch.trial import Report, Segment, TrialState
from tests.hpsearch.support.lives import OPENED, Life
from tests.hpsearch.support.scripted import sweep_of
from tests.hpsearch.support.wide_study import HARM

ENDED = {TrialState.COMPLETE, TrialState.STOPPED, TrialState.FAILED}
MOST = 4


@dataclass
class WideLife(Life):
    """A life whose trials have any width that they may have; each remembers where it would go back to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sure: dict[int, int] = {}
        """Of each trial, the workers of the last rung that it reached."""
        self.widened: dict[int, tuple[tuple[int, float | None, str | None], int]] = {}
        """Of each trial that went beyond, its record before it did, and the workers it had then."""

    def take(self, event: Event) -> Sequence[Decision]:
        if isinstance(event, Started):
            width = self.chance.randint(1, self.sweep_state.records.widest(event.segment.trial) or MOST)
            event = replace(event, segment=replace(event.segment, width=width), reason="as it happened")
            self.remember(event.segment)
        elif isinstance(event, Finished):
            segment = self.segment(event.trial)
            if not event.cut or event.iteration == segment.end:
                self.sure[event.trial] = segment.width
                self.widened.pop(event.trial, None)
        elif isinstance(event, Reverted) and event.checkpoint is not None:
            self.write(event.checkpoint)
        elif isinstance(event, Retried | Dropped):
            self.widened.pop(event.trial, None)  # it goes on from its newest checkpoint, or anew
        decisions = super().take(event)
        if isinstance(event, Reverted):
            before, width = self.widened.pop(event.trial)
            assert self.place(event.trial) == before
            assert self.sweep_state.records.widest(event.trial) == width
            assert self.sweep_state.rows()[event.trial].reverted == event.reason
        return decisions

    def happen(self, segment: Segment) -> Event:
        rollback_point = self.sweep_state.record(segment.trial).rollback_point
        assert (rollback_point is None) == (segment.trial not in self.widened)
        if rollback_point is None or self.chance.random() < 0.6:
            return super().happen(segment)
        end = segment.end or segment.start + 2
        left_behind = self.checkpoint(segment, end) if self.saves and self.chance.random() < 0.5 else None
        return Reverted(segment.trial, segment.attempt, rollback_point.result.iterations, HARM, 1.0, left_behind)

    def remember(self, segment: Segment) -> None:
        sure = self.sure.get(segment.trial, 1)
        once = self.sweep_state.records.widest(segment.trial) is None
        if segment.width > sure and once and segment.trial not in self.widened:
            self.widened[segment.trial] = (self.place(segment.trial), sure)

    def place(self, trial: int) -> tuple[int, float | None, str | None]:
        """What of a trial comes back when it is taken back; NaN equal to itself."""
        rows = self.sweep_state.rows()
        if trial >= len(rows):
            return (0, None, None)
        return (rows[trial].iterations, rows[trial].value, rows[trial].address)

    def segment(self, trial: int) -> Segment:
        return next(segment for segment in self.sweep_state.running() if segment.trial == trial)


@st.composite
def wide_lives(draw) -> WideLife:
    """Lives with rungs, and mostly in trouble: what is to be seen needs a trial that has something to go back to."""
    sweep = sweep_of(
        metric=Metric("loss", draw(st.sampled_from(["minimize", "maximize"]))),
        early_terminate=draw(st.sampled_from([Hyperband(4, eta=2), Hyperband(9), SuccessiveHalving(9)])),
        resources=Resources(max_workers_per_trial=MOST),
    )
    trouble = draw(st.sampled_from([0.2, 0.7]))
    return WideLife(sweep, draw(st.integers(0, 2**32)), draw(st.integers(1, 8)), trouble, draw(st.booleans()))


def state(sweep_state: SweepState) -> object:
    return (
        sweep_state.rows(),
        sweep_state.leaders(),
        sweep_state.counts(),
        sweep_state.running(),
        list(sweep_state.rungs()),
    )


@settings(deadline=None, max_examples=35)
@given(wide_lives())
def test_no_checkpoint_goes_that_a_trial_may_have_to_go_back_to_and_none_is_left_behind(life):
    live_and_look(life)


def test_a_trial_whose_checkpoint_is_damaged_lets_go_of_the_one_from_before_it_was_widened():
    resources = Resources(max_workers_per_trial=MOST)
    live_and_look(WideLife(sweep_of(early_terminate=Hyperband(9), resources=resources), 2122, 4, 0.7, True))


def live_and_look(life: WideLife) -> None:
    while life.step():
        rows = life.sweep_state.rows()
        assert life.sweep_state.checkpoints() == life.on_disk
        assert {row.address for row in rows} - {None} <= life.on_disk
        for trial, ((_, _, checkpoint), _) in life.widened.items():
            assert rows[trial].state in ENDED or checkpoint is None or checkpoint in life.on_disk
    assert len(life.discarded) == len(set(life.discarded))
    assert {row.state for row in life.sweep_state.rows()} <= ENDED
    best = next(iter(life.sweep_state.leaders()), None)
    kept = {row.number for row in life.sweep_state.rows() if row.state is TrialState.FAILED}
    kept |= {best.number} if best is not None else set()
    assert {owner_of(checkpoint) for checkpoint in life.on_disk} <= kept
    assert best is None or best.address is None or best.address in life.on_disk


@settings(deadline=None, max_examples=40)
@given(wide_lives())
def test_the_best_is_the_best_of_the_rows_also_when_trials_are_taken_back(life):
    sign = 1 if life.sweep.metric.goal == "minimize" else -1
    while life.step():
        valued = [row for row in life.sweep_state.rows() if row.value is not None]
        best: Any = min(valued, key=lambda row: (sign * row.value, row.number), default=None)
        assert life.sweep_state.leaders() == ([] if best is None else [best])


@settings(deadline=None, max_examples=40)
@given(wide_lives(), st.data())
def test_replaying_any_prefix_takes_the_widths_from_the_journal(life, data):
    states = []
    while life.step():
        states.append(state(life.sweep_state))
    length = data.draw(st.integers(1, len(life.events)))
    sweep_state = SweepState(life.sweep)
    assert [event for event, _ in sweep_state.replay(life.events[:length])] == life.events[:length]
    assert state(sweep_state) == states[length - 1]
    list(sweep_state.replay(life.events[length:]))
    assert state(sweep_state) == state(life.sweep_state)


def test_a_trial_that_is_taken_back_is_owed_from_its_footing_and_nothing_is_decided():
    sweep_state = SweepState(sweep_of(early_terminate=None, max_iter=9, run_cap=2))
    sweep_state.apply(OPENED)
    first = sweep_state.next()
    assert isinstance(first, Started)
    wide = replace(first, segment=replace(first.segment, width=4), reason="nothing else can start")
    sweep_state.apply(wide)
    assert sweep_state.apply(Reverted(0, 1, 0, HARM, 2.5)).decisions == ()
    assert sweep_state.rows()[0].state is TrialState.WAITING
    assert sweep_state.rows()[0].seconds == 2.5
    assert sweep_state.next() == Started(replace(first.segment, attempt=2), None, bracket=0, rung=0)


def test_the_best_is_the_one_that_a_trial_goes_back_to():
    sweep_state = SweepState(sweep_of(early_terminate=SuccessiveHalving(3)))
    sweep_state.apply(OPENED)

    def start(width: int) -> None:
        event = sweep_state.next()
        assert isinstance(event, Started)
        sweep_state.apply(replace(event, segment=replace(event.segment, width=width)))

    def best() -> int | None:
        return next((row.number for row in sweep_state.leaders()), None)

    for trial, loss in enumerate((0.5, 0.25, 0.75)):
        start(1)
        report = Report(trial, 1, {"loss": loss}, 0.1)
        sweep_state.apply(Finished(trial, 1, 1, f"c{trial}", (report,), False, 1.0))
    assert best() == 1
    start(4)
    sweep_state.apply(Saved(1, 2, 2, "wide", (Report(1, 2, {"loss": 9.0}, 0.1),)))
    assert best() == 0
    sweep_state.apply(Reverted(1, 2, 1, HARM, 1.0))
    assert best() == 1


def test_a_revert_of_an_attempt_that_doesnt_run_doesnt_replay():
    sweep = sweep_of(early_terminate=None, max_iter=9, run_cap=2)
    sweep_state = SweepState(sweep)
    start = sweep_state.next()
    assert isinstance(start, Started)
    for trial, attempt in ((0, 2), (1, 1)):
        with pytest.raises(JournalError, match="that attempt doesn't run"):
            list(SweepState(sweep).replay([OPENED, start, Reverted(trial, attempt, 0, HARM, 1.0)]))
