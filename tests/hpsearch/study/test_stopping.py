from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from hpsearch.decision import Decision
from hpsearch.events import Ended, Event, Failed, Finished, Lost, Opened, Reverted, Saved, Started
from hpsearch.objective import Metric
from hpsearch.study.stopping import StoppingCriteria, Tally, mistake_of, too_many
from hpsearch.sweep.parts import Limits
from hpsearch.trial import Failure, Report, Segment
from tests.hpsearch.support.scripted import sweep_of

NAN = math.nan

FAILURE = Failure("raised", "ValueError: no", "")


class Told:
    """What is told of a sweep, with trials' values as they stand."""

    def __init__(self, target: float | None = None, patience: int | None = None, goal: Any = "maximize") -> None:
        sweep = sweep_of(metric=Metric("m", goal, target=target), limits=Limits(patience=patience))
        self.values: dict[int, float | None] = {}
        self.enough = StoppingCriteria(sweep, lambda trial: self.values.get(trial))

    def tell(self, event: Event, *decisions: Decision) -> str | None:
        self.enough.observe(event, decisions)
        return self.enough.met

    def start(self, trial: int, until: int | None = 3) -> str | None:
        return self.tell(Started(Segment(trial, 0, until, None, 1), None))

    def segment(self, trial: int, value: float, *decisions: Decision, cut: bool = False, until: int = 3) -> str | None:
        """A segment of a trial begins, and ends with this value."""
        self.start(trial, until)
        self.values[trial] = None if math.isnan(value) else value
        iteration = 1 if cut else until
        return self.tell(Finished(trial, 1, iteration, None, reports(trial, [value], iteration), cut, 1.0), *decisions)

    def whole(self, trial: int, value: float) -> str | None:
        """A trial runs all that there is to run."""
        return self.segment(trial, value, complete(trial))

    def fail(self, trial: int, *values: float, retry: bool = False) -> str | None:
        self.start(trial)
        self.values[trial] = None
        return self.tell(Failed(trial, 1, FAILURE, retry, reports(trial, values)))


def reports(trial: int, values: Sequence[float], first: int = 1) -> tuple[Report, ...]:
    return tuple(Report(trial, first + place, {"m": value}, 1.0) for place, value in enumerate(values))


def complete(trial: int) -> Decision:
    return Decision(trial, "complete", "")


def stop(*trials: int) -> list[Decision]:
    return [Decision(trial, "stop", "") for trial in trials]


def withdraw(trial: int) -> Decision:
    return Decision(trial, "withdraw", "")


@pytest.mark.parametrize(
    ("goal", "value", "reached"),
    [
        ("maximize", 0.94, False),
        ("maximize", 0.95, True),
        ("maximize", math.inf, True),
        ("maximize", -math.inf, False),
        ("minimize", 0.96, False),
        ("minimize", 0.95, True),
        ("minimize", -math.inf, True),
        ("minimize", NAN, False),
        ("maximize", NAN, False),
    ],
)
def test_a_report_reaches_the_target_that_is_as_good_or_better(goal, value, reached):
    told = Told(target=0.95, goal=goal)
    assert told.segment(0, value) == ("target" if reached else None)


def test_it_says_which_trial_reached_the_target_first_and_what_its_value_is_since():
    told = Told(target=0.5)
    told.start(4)
    told.values[4] = 0.25
    told.tell(Saved(4, 1, 3, "c", reports(4, [0.25, 0.75, 0.25])))
    told.segment(2, 0.9)
    assert told.enough.reason == (
        "trial 4 reached m 0.75 at iteration 2 (metric.target: 0.5); it went on, and its value is 0.25 since"
    )
    told.values[4] = 0.75  # as metric.scope: best has it
    assert told.enough.reason == "trial 4 reached m 0.75 at iteration 2 (metric.target: 0.5)"


@pytest.mark.parametrize(
    "end",
    [
        Lost(0, 1, "gone"),
        Failed(0, 1, FAILURE, True, ()),
        Failed(0, 1, FAILURE, False, reports(0, [0.9])),
        Reverted(0, 1, 0, "worse", 1.0),
        Ended("error"),
        Opened("inline", 1, "", ""),
    ],
)
def test_a_live_report_counts_until_its_attempt_is_lost(end):
    told = Told(target=0.5)
    told.start(0)
    told.enough.report(reports(0, [0.1]))
    assert told.enough.met is None
    told.enough.report(reports(0, [0.9], 2))
    assert told.enough.met == "target"
    assert told.tell(end) is None


def test_a_live_report_that_is_journaled_goes_on_counting():
    told = Told(target=0.5)
    told.start(0)
    told.enough.report(reports(0, [0.9]))
    told.values[0] = 0.9
    assert told.tell(Finished(0, 1, 1, None, reports(0, [0.9]), True, 1.0)) == "target"
    assert told.tell(Ended("interrupted")) == "target"


def test_what_a_trial_reported_beyond_where_it_went_back_to_reaches_nothing():
    told = Told(target=0.5)
    told.start(0, 9)
    assert told.tell(Saved(0, 1, 4, "c", reports(0, [0.1, 0.1, 0.1, 0.9]))) == "target"
    assert told.tell(Reverted(0, 1, 3, "worse", 1.0)) is None
    told = Told(target=0.5)
    told.start(0, 9)
    told.tell(Saved(0, 1, 4, "c", reports(0, [0.1, 0.1, 0.9, 0.9])))
    assert told.tell(Reverted(0, 1, 3, "worse", 1.0)) == "target"


def test_a_trial_that_has_failed_reaches_nothing_until_it_is_retried():
    told = Told(target=0.5)
    told.start(0)
    told.tell(Saved(0, 1, 1, "c", reports(0, [0.9])))
    assert told.tell(Failed(0, 1, FAILURE, False, reports(0, [0.1], 2))) is None
    assert told.tell(Opened("inline", 1, "", ""), withdraw(0)) == "target"


def test_without_a_target_nothing_reaches_it():
    told = Told()
    told.enough.report(reports(0, [math.inf]))
    assert told.segment(0, math.inf) is None
    assert told.enough.reason == ""


def test_patience_ends_it_after_so_many_trials_in_a_row_without_a_better_value():
    told = Told(patience=3)
    assert [told.whole(trial, value) for trial, value in enumerate([0.5, 0.4, 0.5, 0.6, 0.1, 0.6])] == [None] * 6
    assert told.whole(6, NAN) == "patience"
    assert told.enough.reason == ("3 trials in a row ended without a better m than 0.6 of trial 3 (limits.patience: 3)")


def test_less_is_better_where_the_goal_is_to_minimize():
    told = Told(patience=2, goal="minimize")
    assert [told.whole(trial, value) for trial, value in enumerate([0.5, 0.4, 0.3, 0.3, 0.2, 0.9, 0.9])] == [
        *[None] * 6,
        "patience",
    ]


def test_trials_that_fail_count_and_one_that_is_tried_again_doesnt():
    told = Told(patience=2)
    assert [told.fail(0), told.fail(1, retry=True), told.fail(1, 0.9)] == [None, None, "patience"]
    assert told.enough.reason == "2 trials in a row ended without any m (limits.patience: 2)"


def test_a_cut_segment_gives_no_value_so_that_interruptions_change_nothing():
    told = Told(patience=2)
    told.whole(0, 0.5)
    told.segment(1, 0.9, cut=True)
    told.tell(Ended("interrupted"))
    told.tell(Opened("inline", 1, "", ""))
    assert told.whole(1, 0.4) is None
    assert told.whole(2, 0.4) == "patience"
    assert "0.5 of trial 0" in told.enough.reason


def test_a_segment_that_ends_where_it_was_cut_gives_its_value():
    told = Told(patience=1)
    assert told.segment(0, 0.5, complete(0), cut=True, until=1) is None
    assert told.whole(1, 0.4) == "patience"


def test_a_promoted_trial_that_gives_a_better_value_ends_the_row_and_the_one_that_gave_the_best_isnt_counted():
    told = Told(patience=3)
    told.segment(0, 0.5)
    told.segment(1, 0.4)
    assert told.segment(2, 0.3, *stop(1, 2)) is None
    assert told.segment(0, 0.6, complete(0)) is None
    assert [told.whole(trial, 0.1) for trial in (3, 4, 5)] == [None, None, "patience"]


def test_the_values_of_a_trial_that_fails_count_no_more_and_again_when_it_is_retried():
    told = Told(patience=3)
    told.segment(0, 0.5)
    told.segment(1, 0.9)
    told.whole(2, 0.6)
    assert told.fail(1) is None  # the row begins anew with the value of trial 2
    told.whole(3, 0.1)
    assert told.whole(4, 0.1) == "patience"
    assert "0.6 of trial 2" in told.enough.reason
    assert told.tell(Opened("inline", 1, "", ""), withdraw(1)) == "patience"
    assert "0.9 of trial 1" in told.enough.reason
    assert told.segment(1, 1.0, complete(1)) is None


def test_a_trial_that_had_ended_and_runs_on_has_not_ended():
    told = Told(patience=2)
    told.whole(0, 0.5)
    told.whole(1, 0.1)
    assert told.whole(2, 0.1) == "patience"
    assert told.start(2, 9) is None


def test_the_target_comes_before_patience():
    told = Told(target=0.5, patience=1)
    told.whole(0, 0.6)
    assert told.whole(1, 0.1) == "target"


@pytest.mark.parametrize(
    ("failed", "tried", "limit", "ends"),
    [
        (1, 1, "auto", False),
        (4, 4, "auto", False),
        (5, 5, "auto", True),
        (5, 6, "auto", False),  # one came through
        (18, 19, "auto", False),
        (10, 20, "auto", True),
        (9, 20, "auto", False),
        (20, 41, "auto", False),
        (50, 100, "auto", True),
        (1, 100, 1, True),
        (2, 2, 3, False),
        (3, 100, 3, True),
        (1000, 1000, "none", False),
    ],
)
def test_a_sweep_ends_when_its_first_five_trials_or_half_of_twenty_have_failed_or_as_many_as_it_says(
    failed, tried, limit, ends
):
    assert too_many(Tally(failed, tried), limit) is ends


@pytest.mark.parametrize(
    ("failed", "tried", "avoided", "ends"),
    [
        (15, 30, 15, False),
        (25, 35, 15, True),  # of the other 20, 10 raised
        (24, 34, 15, False),
        (5, 5, 5, False),
        (19, 19, 19, False),
        (20, 20, 20, True),  # there is nothing else
        (20, 21, 20, False),
        (6, 8, 1, False),
    ],
)
def test_what_the_searcher_learns_to_avoid_does_not_count_until_twenty_failed_and_nothing_else_came(
    failed, tried, avoided, ends
):
    assert too_many(Tally(failed, tried, avoided=avoided), "auto") is ends
    assert too_many(Tally(failed, tried, avoided=avoided), failed)


def failed(kind: str = "raised") -> Failed:
    return Failed(7, 1, Failure(kind, "ValueError: no", "Traceback\n  line 3\n"), False, (), 1.0)  # type: ignore[arg-type]


def test_the_mistake_says_how_many_failed_the_last_traceback_and_how_to_go_on():
    assert mistake_of(failed(), Tally(4, 4), "auto") is None
    text = str(mistake_of(failed(), Tally(5, 5), "auto"))
    assert text.startswith("5 of the 5 trials that were tried have failed; the last one, trial 7: ValueError: no\n")
    assert "Traceback\n  line 3\n" in text
    assert "--set limits.max_failures=none" in text


@pytest.mark.parametrize("limit", ["auto", "none", 9])
def test_a_broken_contract_ends_a_sweep_in_which_nothing_came_through_and_no_other(limit):
    assert str(mistake_of(failed("contract"), Tally(1, 1), limit)) == "ValueError: no"
    assert str(mistake_of(failed("contract"), Tally(2, 2), limit)) == "ValueError: no"
    assert mistake_of(failed("contract"), Tally(1, 2), limit) is None
