"""The time left: the iterations that are left, times the mean pace, over the workers."""

from __future__ import annotations

import pytest

from hpsearch.events import Failed, Finished, Started, Steered
from hpsearch.observers.time_left import TimeLeft
from hpsearch.schedulers.asha import ASHA
from hpsearch.schedulers.halving import Hyperband, SuccessiveHalving
from hpsearch.schedulers.median import MedianStopping
from hpsearch.schedulers.pbt import PBT
from hpsearch.study.state import SweepState
from hpsearch.sweep.parts import Limits, Metric
from hpsearch.sweep.sweep import Sweep
from hpsearch.task import Workers
from hpsearch.trial import Failure, Report
from tests.hpsearch.support.lives import OPENED
from tests.hpsearch.support.scripted import sweep_of

FULL = sweep_of(early_terminate=None, max_iter=4, run_cap=12)


class Course:
    """A sweep of which a test says what its iterations take, on one worker."""

    def __init__(self, sweep: Sweep, spent: float = 0.0, begun: float = 0.0) -> None:
        self.time_left = TimeLeft(sweep, spent)
        self.sweep_state = SweepState(sweep)
        self.sweep_state.apply(OPENED)
        self.time_left.observe(OPENED, begun)
        self.now = begun

    def start(self) -> Started:
        event = self.sweep_state.next()
        assert isinstance(event, Started)
        self.sweep_state.apply(event)
        self.time_left.observe(event, self.now)
        return event

    def take(self, event: Finished | Failed) -> None:
        self.now += event.seconds
        self.sweep_state.apply(event)
        self.time_left.observe(event, self.now)

    def run(self, *seconds: float, beside: float = 0.0) -> None:
        """Run the next segment: iterations that take so long, and what comes on top of them."""
        segment = self.start().segment
        reports = tuple(
            Report(segment.trial, segment.start + i, {"loss": segment.trial * 7 % 11}, each)
            for i, each in enumerate(seconds, 1)
        )
        took, at = sum(seconds) + beside, segment.start + len(seconds)
        self.take(Finished(segment.trial, segment.attempt, at, "checkpoint", reports, False, took))

    def left(self, ready: int = 1) -> float | None:
        state = self.sweep_state
        return self.time_left.estimate(state.rungs(), state.total(), Workers(ready, ready, ready), self.now)


@pytest.mark.parametrize(("ready", "share"), [(1, 1.0), (2, 0.5), (64, 1 / 9)])  # at least a trial's own time
@pytest.mark.parametrize("beside", [0.0, 4.0])
@pytest.mark.parametrize("begun", [0.0, 600.0])  # the start of workers isn't the sweep's pace
def test_trials_to_come_take_as_long_as_those_so_far_with_all_that_a_segment_takes(ready, share, beside, begun):
    course = Course(FULL, begun=begun)
    for trials in range(1, 4):
        assert course.left() is None, trials
        course.run(1.0, 1.0, 1.0, 1.0, beside=beside)
    assert course.left(ready) == pytest.approx(9 * (4.0 + beside) * share)


@pytest.mark.parametrize("waited", [0.0, 0.4, 30.0])
@pytest.mark.parametrize("warmed_up", [0.0, 3.0])
def test_short_trials_are_not_taken_for_long_ones(warmed_up, waited):
    course = Course(sweep_of(early_terminate=None, max_iter=20, run_cap=100))
    for trial in range(20):
        course.run(*[0.005] * 20, beside=warmed_up if trial < 2 else 0.0)
    course.start()  # its reports travel in batches
    course.now += waited
    assert course.left() == pytest.approx(80 * 0.1)


def test_what_running_trials_reported_counts():
    course = Course(sweep_of(early_terminate=None, max_iter=100, run_cap=4))
    for trial in range(4):
        course.start()
        course.time_left.report([Report(trial, i, {"loss": 1.0}, 2.0) for i in range(1, 51)])
        course.time_left.report([Report(trial, 50, {"loss": 1.0}, 2.0)])  # once more, of the journal
    assert course.left(2) == pytest.approx(4 * 50 * 2.0 / 2)


def test_trials_that_fail_or_end_early_take_less():
    course = Course(sweep_of(early_terminate=None, max_iter=4, run_cap=100))
    for trial in range(20):
        if trial % 2:
            course.run(1.0, 1.0)
        else:
            course.start()
            course.take(Failed(trial, 1, Failure("raised", "no luck", ""), False, (), 0.0))
    assert course.left() == pytest.approx(80 * 1.0)


@pytest.mark.parametrize(
    ("early_terminate", "run_cap", "within"),
    [
        (None, 40, 0.01),
        (Hyperband(27), None, 0.01),
        (Hyperband(9), 60, 0.01),
        (SuccessiveHalving(27, min_iter=1), None, 0.01),
        (ASHA(4, min_iter=1, eta=2), 60, 0.25),
        (MedianStopping(9), 40, 0.75),
    ],
    ids=["full length", "hyperband", "rounds of hyperband", "halving", "asha", "median"],
)
def test_the_rungs_say_what_is_left(early_terminate, run_cap, within):
    max_iter = 9 if early_terminate is None else None
    course = Course(sweep_of(early_terminate=early_terminate, max_iter=max_iter, run_cap=run_cap))
    estimates = []
    while isinstance(event := course.sweep_state.next(), Started):
        assert event.segment.end is not None
        course.run(*[1.0] * (event.segment.end - event.segment.start))
        estimates.append((course.now, course.left()))
    at, left = estimates[len(estimates) // 2]
    assert left == pytest.approx(course.now - at, rel=within)


@pytest.mark.parametrize(
    "changes",
    [{"early_terminate": PBT(4, population=4, interval=1), "max_iter": None}, {"max_iter": None}, {"run_cap": None}],
    ids=["a population", "no last iteration", "no number of trials"],
)
def test_nothing_is_shown_where_no_bound_is_known(changes):
    course = Course(sweep_of(**{"early_terminate": None, "max_iter": 4, "run_cap": 20} | changes))
    for _ in range(4):
        course.run(1.0)
    assert course.left() is None


@pytest.mark.parametrize(
    "changes", [{"metric": Metric("loss", "minimize", target=-1.0)}, {"limits": Limits(patience=50)}], ids=str
)
def test_of_a_sweep_that_may_end_sooner_all_is_shown_that_is_left(changes):
    course = Course(sweep_of(early_terminate=None, max_iter=4, run_cap=12, **changes))
    for _ in range(4):
        course.run(1.0, 1.0, 1.0, 1.0)
    assert course.left() == pytest.approx(8 * 4.0)


@pytest.mark.parametrize(("spent", "left"), [(5.0, 30.0 - 5.0 - 16.0), (40.0, 0.0)])
def test_a_time_limit_cuts_what_is_left(spent, left):
    course = Course(sweep_of(early_terminate=None, max_iter=4, run_cap=12, limits=Limits(max_time=30.0)), spent)
    for _ in range(4):
        course.run(1.0, 1.0, 1.0, 1.0)
    assert course.left() == pytest.approx(left)


def test_where_nothing_but_the_time_limit_ends_a_sweep_a_pause_takes_nothing_off_it():
    course = Course(sweep_of(early_terminate=ASHA(9), limits=Limits(max_time=30.0)))
    course.run(1.0)
    for number in (1, 3):
        left = course.left()
        course.time_left.observe(Steered("pause", "ada@there:7", number, {}, ""), course.now)
        course.now += 1000.0
        course.time_left.observe(Steered("pause", "ada@there:7", number, {}, "the sweep is paused already"), course.now)
        assert course.left() == left
        course.time_left.observe(Steered("resume", "ada@there:7", number + 1, {}, ""), course.now)
        assert course.left() == left
        course.run(1.0)
    assert course.left() == pytest.approx(27.0)


def test_another_run_of_the_study_begins_with_nothing_known():
    course = Course(FULL)
    for _ in range(4):
        course.run(1.0, 1.0, 1.0, 1.0)
    course.time_left.observe(OPENED, 0.0)
    assert course.left() is None
