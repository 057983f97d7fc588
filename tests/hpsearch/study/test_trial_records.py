from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpsearch.events import Started
from hpsearch.objective import Metric, Objective
from hpsearch.study.trial_records import PackUsers, TrialRecords
from hpsearch.trainable.addresses import in_pack, pack_of_all
from hpsearch.trial import Failure, Goal, Parent, Report, Segment, StateAt, Trial, TrialState

HARM = "width 4: loss NaN after 2"
FAILURE = Failure("raised", "ValueError: no", "Traceback")


class Table:
    """TrialRecords that are told of whole trials in one call."""

    def __init__(self, goal: Goal = "minimize", scope: Literal["last", "best"] = "last") -> None:
        self.records = TrialRecords(Objective(Metric("loss", goal, scope)))

    def start(self, trial: int, width: int = 1) -> None:
        records = self.records
        new = trial >= len(records.rows())
        segment = Segment(trial, 0, 9, None, 1) if new else records.of(trial).again()
        segment = replace(segment, width=width)
        records.start(Started(segment, Trial(trial, {"x": trial}, trial, "random") if new else None))

    def report(self, trial: int, iteration: int, value: float, checkpoint: bool = False) -> None:
        if checkpoint:
            self.records.of(trial).save(iteration, f"{trial}/{iteration}")
        self.records.count(trial, (Report(trial, iteration, {"loss": value}, 0.1),))

    def pause(self, trial: int) -> None:
        """It ends early: the rest of its segment is requeued."""
        self.records.release(trial, TrialState.WAITING)

    def settle(self, trial: int) -> None:
        """It reaches its rung."""
        self.records.of(trial).settle()
        self.pause(trial)

    def revert(self, trial: int, left_behind: str | None = None) -> None:
        self.pause(trial)
        self.records.of(trial).revert(HARM, left_behind)

    def end(self, trial: int, state: TrialState = TrialState.COMPLETE) -> None:
        self.records.release(trial, TrialState.WAITING)
        self.records.decide(trial, state, "why")

    def whole(self, trial: int, value: float, state: TrialState = TrialState.COMPLETE) -> None:
        self.start(trial)
        self.report(trial, 1, value, checkpoint=True)
        self.end(trial, state)

    def fail(self, trial: int) -> None:
        self.records.release(trial, TrialState.FAILED)
        self.records.fail(trial, FAILURE)

    def best(self) -> int | None:
        leaders = self.records.leaders()
        return leaders[0].number if leaders else None

    def gone(self) -> list[str]:
        return self.records.obsolete(keep_all=False)


@pytest.mark.parametrize(("goal", "best"), [("minimize", 1), ("maximize", 3)])
def test_best_is_over_all_trials_whatever_their_state_and_ties_go_to_the_lower_number(goal, best):
    table = Table(goal)
    for trial, value in enumerate((2.0, 1.0, 1.0, 3.0, 3.0)):
        table.start(trial)
        table.report(trial, 1, value)
    table.end(4)
    table.end(2, TrialState.STOPPED)
    assert table.best() == best


def test_a_trial_that_gets_worse_is_judged_by_its_last_value():
    table = Table()
    for trial in (0, 1):
        table.start(trial)
    table.report(0, 1, 1.0)
    table.report(1, 1, 2.0)
    assert table.best() == 0
    table.report(0, 2, 3.0)
    assert table.best() == 1
    table.report(1, 2, 4.0)
    assert table.best() == 0
    table.report(1, 3, 3.0)
    assert table.best() == 0  # a tie
    table.report(0, 3, math.nan)
    assert table.best() == 1
    table.report(0, 4, 1.0)
    assert table.best() == 0
    (row,) = table.records.leaders()
    assert (row.iterations, row.value) == (4, 1.0)


def test_nan_has_no_value_and_failed_trials_lose_theirs():
    table = Table()
    table.start(0)
    table.report(0, 1, math.nan)
    assert table.best() is None
    table.start(1)
    table.report(1, 1, 0.5)
    table.fail(1)
    assert table.best() is None
    nan, failed = table.records.rows()
    assert (nan.value, nan.iterations, nan.state) == (None, 1, TrialState.RUNNING)
    assert (failed.value, failed.iterations, failed.state) == (None, 1, TrialState.FAILED)
    assert (failed.failure, failed.reason) == (FAILURE, "ValueError: no")


def test_an_infinite_value_is_one():
    table = Table()
    table.start(0)
    table.fail(0)
    table.whole(1, math.inf)
    assert table.best() == 1
    assert table.gone() == []
    table.whole(2, -math.inf)
    assert table.best() == 2
    assert table.gone() == ["1/1"]


def test_iterations_that_are_run_again_count_only_from_where_the_value_stands():
    """A trainable without checkpoints starts its promotions from zero."""
    table = Table()
    table.start(0)
    table.report(0, 3, 1.0)
    table.report(0, 1, 7.0)
    table.report(0, 2, 8.0)
    (row,) = table.records.rows()
    assert (row.iterations, row.value) == (3, 1.0)
    table.report(0, 3, 1.5)
    table.report(0, 4, 1.25)
    (row,) = table.records.rows()
    assert (row.iterations, row.value) == (4, 1.25)


def test_of_the_ended_trials_only_the_best_and_those_that_failed_keep_their_checkpoint():
    table = Table()
    table.whole(0, 2.0)
    assert table.gone() == []
    table.whole(1, 3.0)
    assert table.gone() == ["1/1"]
    table.whole(2, 2.0)
    assert table.gone() == ["2/1"]
    table.whole(3, 1.0)
    assert table.gone() == ["0/1"]
    table.start(4)
    table.report(4, 1, 9.0, checkpoint=True)
    assert table.gone() == []  # it may still run
    table.report(4, 2, 8.0, checkpoint=True)
    assert table.gone() == ["4/1"]
    table.fail(4)
    assert table.gone() == []  # it may be retried
    assert table.records.checkpoints() == {"3/1", "4/2"}


def test_the_checkpoint_that_a_segment_began_with_is_kept_until_it_ends():
    """Its code may look at it at any time, and a directory or file is read where it lies."""
    table = Table()
    table.start(0)
    table.report(0, 1, 1.0, checkpoint=True)
    table.pause(0)
    table.start(0)
    table.report(0, 2, 1.0, checkpoint=True)
    table.report(0, 3, 1.0, checkpoint=True)
    assert table.gone() == ["0/2"]
    table.pause(0)
    assert table.gone() == ["0/1"]


def test_checkpoints_of_trials_without_a_value_go():
    table = Table()
    table.whole(0, math.nan)
    assert table.gone() == ["0/1"]
    assert table.records.checkpoints() == set()


def test_keep_all_lets_none_go():
    table = Table()
    for trial in range(3):
        table.whole(trial, float(-trial))
    assert table.records.obsolete(keep_all=True) == []


def test_counts_follow_the_states():
    table = Table()
    table.start(0)
    table.start(1)
    assert dict(+table.records.counts) == {TrialState.RUNNING: 2}
    table.end(0, TrialState.STOPPED)
    table.records.release(1, TrialState.WAITING)
    assert dict(+table.records.counts) == {TrialState.STOPPED: 1, TrialState.WAITING: 1}
    assert [segment.trial for segment in table.records.segments()] == []
    table.start(1)
    assert [segment.attempt for segment in table.records.segments()] == [2]


def widened(width: int = 4) -> Table:
    """A trial that reached a rung on 1 worker at iteration 3, and goes on with more."""
    table = Table()
    table.start(0)
    table.report(0, 3, 2.0, checkpoint=True)
    table.settle(0)
    table.start(0, width)
    assert table.gone() == []
    return table


def test_a_widened_trial_goes_back_to_where_it_stood():
    table = widened()
    table.report(0, 4, 8.0, checkpoint=True)
    assert table.gone() == []  # it may have to go back to the first one
    assert table.records.checkpoints() == {"0/3", "0/4"}
    table.report(0, 5, 9.0, checkpoint=True)
    assert table.gone() == ["0/4"]
    (row,) = table.records.rows()
    assert (row.iterations, row.value, row.checkpoint, row.width, row.reverted) == (5, 9.0, "0/5", 4, "")
    table.revert(0, left_behind="0/6")
    (row,) = table.records.rows()
    assert (row.iterations, row.value, row.checkpoint, row.width, row.reverted) == (3, 2.0, "0/3", 4, HARM)
    assert sorted(table.gone()) == ["0/5", "0/6"]
    assert table.records.checkpoints() == {"0/3"}
    again = table.records.of(0).again()
    assert (again.start, again.checkpoint, again.end, again.attempt) == (3, "0/3", 9, 3)
    table.report(0, 4, 1.0)
    assert (table.records.rows()[0].iterations, table.records.rows()[0].value) == (4, 1.0)


def test_a_trial_that_was_taken_back_may_have_as_many_workers_as_before_and_no_more():
    table = widened()
    assert table.records.widest(0) is None
    table.revert(0)
    assert table.records.widest(0) == 1
    assert table.records.widest(1) is None  # one that is still to be created
    table = Table()
    table.start(0)
    table.settle(0)
    table.start(0, 2)
    table.settle(0)  # two did no harm
    table.start(0, 8)
    table.revert(0)
    assert table.records.widest(0) == 2


def test_a_cut_or_another_width_on_the_way_doesnt_move_the_footing():
    table = widened(width=2)
    table.report(0, 4, 8.0, checkpoint=True)
    for width in (4, 1):
        table.pause(0)
        table.start(0, width)
    table.report(0, 5, 9.0, checkpoint=True)
    assert table.gone() == []  # its segment began with 0/4
    table.pause(0)
    assert table.gone() == ["0/4"]
    table.revert(0)
    (row,) = table.records.rows()
    assert (row.iterations, row.value, row.checkpoint) == (3, 2.0, "0/3")
    assert table.records.widest(0) == 1


def test_a_rung_that_is_reached_is_the_new_footing():
    table = widened()
    table.report(0, 9, 1.0, checkpoint=True)
    table.settle(0)
    assert table.gone() == ["0/3"]
    table.start(0, 4)
    assert table.records.of(0).rollback_point is None  # as wide as before: what goes wrong now isn't the width's doing
    table.pause(0)
    table.start(0, 8)
    table.report(0, 10, 7.0, checkpoint=True)
    table.revert(0)
    (row,) = table.records.rows()
    assert (row.iterations, row.value, row.checkpoint) == (9, 1.0, "0/9")
    assert table.records.widest(0) == 4


def test_a_trial_that_was_wide_from_the_start_goes_back_to_nothing():
    table = Table()
    table.start(0, 4)
    table.report(0, 2, math.nan, checkpoint=True)
    table.revert(0)
    (row,) = table.records.rows()
    assert (row.iterations, row.value, row.checkpoint) == (0, None, None)
    assert table.gone() == ["0/2"]
    assert table.best() is None
    assert table.records.widest(0) == 1


def test_the_least_width_of_the_sweep_needs_no_footing():
    records = TrialRecords(Objective(Metric("loss")), least_width=2)
    records.start(Started(Segment(0, 0, 9, None, 1, width=2), Trial(0, {}, 0, "random")))
    assert records.of(0).rollback_point is None
    records.start(Started(Segment(1, 0, 9, None, 1, width=3), Trial(1, {}, 0, "random")))
    assert records.of(1).rollback_point is not None


def test_a_trial_that_fails_on_more_workers_leaves_its_newest_checkpoint_alone():
    table = widened()
    table.report(0, 4, 8.0, checkpoint=True)
    assert table.gone() == []
    table.fail(0)
    assert table.gone() == ["0/3"]
    assert table.records.checkpoints() == {"0/4"}


def test_a_trial_that_starts_again_from_zero_has_no_footing():
    table = widened()
    table.report(0, 4, 8.0, checkpoint=True)
    assert table.gone() == []
    table.pause(0)
    table.records.of(0).drop_checkpoint()
    assert table.gone() == ["0/3"]
    assert table.records.checkpoints() == set()
    assert table.records.of(0).again().start == 0


def test_a_retried_trial_shows_again_what_it_reported_before_it_failed():
    table = Table()
    table.start(0)
    table.report(0, 3, 2.0, checkpoint=True)
    table.records.of(0).former_result = table.records.of(0).result
    table.report(0, 4, 9.0)
    table.fail(0)
    table.records.retry(0)
    (row,) = table.records.rows()
    assert (row.iterations, row.value, row.checkpoint, row.metrics) == (3, 2.0, "0/3", {"loss": 2.0})


def shown(table: Table, trial: int = 0) -> tuple[int, float | None, int, str | None]:
    row = table.records.rows()[trial]
    return row.iterations, row.value, row.value_iteration, row.checkpoint


def test_with_scope_best_the_value_and_its_checkpoint_stay_when_the_trial_gets_worse():
    table = Table(scope="best")
    table.start(0)
    table.report(0, 1, 3.0, checkpoint=True)
    table.report(0, 2, 2.0, checkpoint=True)
    assert table.gone() == ["0/1"]
    for iteration, value in ((3, 4.0), (4, math.nan)):
        table.report(0, iteration, value, checkpoint=True)
        assert shown(table) == (iteration, 2.0, 2, "0/2")
    assert table.gone() == ["0/3"]
    assert table.records.checkpoints() == {"0/2", "0/4"}  # its value's, and the one that it goes on from
    table.report(0, 5, 1.0)
    assert shown(table) == (5, 1.0, 5, None)  # none was saved there
    assert table.gone() == ["0/2"]
    table.report(0, 6, 1.0, checkpoint=True)
    assert shown(table) == (6, 1.0, 6, "0/6")


def test_with_scope_best_nan_is_a_trials_value_only_where_nothing_else_was_reported():
    table = Table(scope="best")
    table.start(0)
    table.report(0, 1, math.nan)
    assert table.best() is None
    table.report(0, 2, math.inf)
    table.report(0, 3, math.nan)
    assert (shown(table), table.best()) == ((3, math.inf, 2, None), 0)


def test_with_scope_best_the_best_ended_trial_keeps_the_checkpoint_of_its_value():
    table = Table(scope="best")
    for trial, least in enumerate((2.0, 1.0, 3.0)):
        table.start(trial)
        table.report(trial, 1, least, checkpoint=True)
        table.report(trial, 2, 9.0, checkpoint=True)
        table.end(trial)
    assert sorted(table.gone()) == ["0/1", "0/2", "2/1", "2/2"]
    assert table.best() == 1
    assert shown(table, 1) == (2, 1.0, 1, "1/1")
    assert shown(table, 0) == (2, 2.0, 1, None)


def test_with_scope_best_a_trial_that_goes_back_has_the_value_and_the_checkpoint_of_before():
    table = Table(scope="best")
    table.start(0)
    table.report(0, 2, 1.0, checkpoint=True)
    table.report(0, 3, 2.0, checkpoint=True)
    table.settle(0)
    table.start(0, 4)
    table.report(0, 4, 0.5, checkpoint=True)
    table.report(0, 5, 0.25)
    assert table.gone() == []
    assert table.records.checkpoints() == {"0/2", "0/3", "0/4"}
    assert shown(table) == (5, 0.25, 5, None)
    table.revert(0, left_behind="0/6")
    assert shown(table) == (3, 1.0, 2, "0/2")
    assert table.records.checkpoints() == {"0/2", "0/3"}
    assert sorted(table.gone()) == ["0/4", "0/6"]
    assert table.records.of(0).again().checkpoint == "0/3"


def test_with_scope_best_a_trial_that_may_be_retried_keeps_the_checkpoint_of_the_value_that_it_goes_back_to():
    table = Table(scope="best")
    table.start(0)
    table.report(0, 1, 2.0, checkpoint=True)
    table.report(0, 2, 3.0, checkpoint=True)
    table.records.of(0).former_result = table.records.of(0).result
    table.report(0, 3, 1.0)
    table.fail(0)
    assert table.gone() == []
    table.records.retry(0)
    assert shown(table) == (2, 2.0, 1, "0/1")
    table.start(0)
    table.report(0, 3, 1.0, checkpoint=True)
    assert table.gone() == ["0/1"]
    table.pause(0)
    assert table.gone() == ["0/2"]  # with which its segment began


@pytest.mark.parametrize("scope", ["last", "best"])
def test_a_checkpoint_that_is_told_of_after_its_report_is_the_values_where_the_same_attempt_wrote_it(scope):
    table = Table(scope=scope)
    table.start(0)
    table.report(0, 3, 1.0)
    table.records.of(0).save(3, "0/3")
    assert shown(table) == (3, 1.0, 3, "0/3")


def test_with_scope_best_an_iteration_that_is_run_again_from_zero_gives_the_former_value_no_checkpoint():
    """What it reports there need not be the same."""
    table = Table(scope="best")
    table.start(0)
    table.report(0, 2, 1.0, checkpoint=True)
    table.report(0, 3, 2.0)
    table.pause(0)
    table.records.of(0).drop_checkpoint()
    assert shown(table) == (3, 1.0, 2, None)
    table.start(0)
    table.report(0, 2, 5.0, checkpoint=True)
    assert shown(table) == (3, 1.0, 2, None)
    table.report(0, 3, 1.0, checkpoint=True)
    assert shown(table) == (3, 1.0, 3, "0/3")


def test_a_fork_without_a_checkpoint_of_its_own_is_forked_from_its_parents_as_long_as_that_is_there():
    for keep_all in (True, False):
        records = Table().records
        path = "trials/00000/1/hpsearch-checkpoint-3"
        fork = Trial(1, {"x": 1}, 1, "random", Parent(0, 3, path), 2)
        records.start(Started(Segment(0, 0, 3, None, 1), Trial(0, {"x": 0}, 0, "random")))
        records.of(0).save(3, path)
        records.start(Started(Segment(1, 2, 9, path, 1), fork))
        for trial in (0, 1):
            records.release(trial, TrialState.WAITING)
            records.decide(trial, TrialState.STOPPED, "why")
        assert records.obsolete([StateAt(1, 5)], keep_all=keep_all) == []
        assert records.checkpoint_at(StateAt(1, 5)) == (2, path)
        assert records.obsolete([], keep_all=keep_all) == ([] if keep_all else [path])
        assert records.checkpoint_at(StateAt(1, 5)) == ((2, path) if keep_all else (5, None))


def test_what_a_trial_saved_before_it_was_taken_back_is_not_forked():
    table = Table()
    table.start(0)
    table.report(0, 3, 1.0, checkpoint=True)
    table.settle(0)
    table.start(0, width=4)
    table.report(0, 5, math.nan, checkpoint=True)
    assert table.records.obsolete([StateAt(0, 5)], keep_all=True) == []
    table.revert(0)
    assert table.records.checkpoint_at(StateAt(0, 5)) == (3, "0/3")
    assert table.records.checkpoint_at(StateAt(0, 9)) == (3, "0/3")


PLACES = [f"trials/{trial:05d}/1/hpsearch-checkpoint-3" for trial in range(8)]
PACKS = {pack_of_all(places): places for places in (PLACES[:2], PLACES[2:6])}
ADDRESSES = [in_pack(pack, place) for pack, places in PACKS.items() for place in places] + PLACES[6:]


def test_a_pack_goes_with_its_last_checkpoint():
    users = PackUsers()
    assert users.release([PLACES[7], ADDRESSES[1]]) == []
    assert users.release([ADDRESSES[1]]) == [], "it was counted before"
    assert users.release([ADDRESSES[0], PLACES[6]]) == list(PACKS)[:1]


def test_one_that_nobody_was_told_of_keeps_its_pack():
    assert PackUsers().release(ADDRESSES[2:5]) == []


@given(order=st.permutations(ADDRESSES), sizes=st.lists(st.integers(0, 4)))
def test_in_whatever_order_they_go_each_pack_goes_with_its_last(order: list[str], sizes: list[int]) -> None:
    users, there, needed = PackUsers(), set(PACKS), set(ADDRESSES)
    for size in [*sizes, len(order)]:
        gone, order = order[:size], order[size:]
        needed -= set(gone)
        there -= set(users.release(gone))
        assert there == {pack for pack, places in PACKS.items() if {in_pack(pack, place) for place in places} & needed}
