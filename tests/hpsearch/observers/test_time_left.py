"""The time left: shown where it is known within a factor of two."""

from __future__ import annotations

import pytest

from hpsearch.events import Failed, Finished, Started, Steered
from hpsearch.observers.time_left import TimeLeft
from hpsearch.schedulers.asha import ASHA
from hpsearch.schedulers.pbt import PBT
from hpsearch.study.state import StudyState
from hpsearch.sweep.sweep import Limits, Metric, Sweep
from hpsearch.task import Workers
from hpsearch.trial import Failure, Report
from tests.benchmarks.time_left import CASES, MOMENTS, shown_at
from tests.hpsearch.support.lives import OPENED
from tests.hpsearch.support.scripted import sweep_of

FULL = sweep_of(early_terminate=None, max_iter=4, run_cap=12)


class Course:
    """A sweep of which a test says what its iterations take, on one worker."""

    def __init__(self, sweep: Sweep, spent: float = 0.0, begun: float = 0.0) -> None:
        self.time_left = TimeLeft(sweep, spent)
        self.study_state = StudyState(sweep)
        self.study_state.apply(OPENED)
        self.time_left.observe(OPENED)
        self.now = begun
        self.trials = 0

    def start(self) -> Started:
        event = self.study_state.next()
        assert isinstance(event, Started)
        self.study_state.apply(event)
        self.time_left.observe(event)
        return event

    def run(self, *seconds: float, beside: float = 0.0) -> None:
        """Run the next segment: iterations that take so long, and what comes on top of them."""
        segment = self.start().segment
        reports = tuple(
            Report(segment.trial, segment.start + i, {"loss": float(segment.trial)}, each)
            for i, each in enumerate(seconds, 1)
        )
        self.now += sum(seconds) + beside
        end = Finished(
            segment.trial, segment.attempt, segment.start + len(seconds), None, reports, False, sum(seconds) + beside
        )
        self.study_state.apply(end)
        self.time_left.observe(end)

    def left(self, ready: int = 1, wanted: int | None = None) -> float | None:
        state, workers = self.study_state, Workers(ready, ready, wanted or ready)
        return self.time_left.estimate(state.rungs(), state.total(), workers, self.now)


def test_trials_to_come_take_as_long_as_those_so_far():
    course = Course(FULL)
    for trials in range(1, 4):
        course.run(1.0, 1.0, 1.0, 1.0)
        assert course.left() == (None if trials < 3 else pytest.approx(9 * 4.0))
    course.run(1.0, 1.0, 1.0, 1.0, beside=4.0)  # 1 s each on average
    assert course.left() == pytest.approx(8 * (4.0 + 1.0))


def test_more_workers_share_what_is_left():
    course = Course(FULL)
    for _ in range(4):
        course.run(1.0, 1.0, 1.0, 1.0)
    on_one, on_two = course.left(), course.left(2)
    assert on_one is not None
    assert on_two is not None
    assert on_one / 2 <= on_two < 0.75 * on_one  # the last trial may be alone


def test_the_start_of_workers_and_the_first_iterations_are_no_measure():
    quick, slow = Course(FULL), Course(FULL, begun=600.0)
    for course in (quick, slow):
        for _ in range(5):
            course.run(1.0, 1.0, 1.0, 1.0)
    assert quick.left() == slow.left()
    warm = Course(sweep_of(early_terminate=None, max_iter=100, run_cap=4))
    for _ in range(3):
        warm.run(50.0, *[1.0] * 99)
    assert warm.left() == pytest.approx(149.0)


def test_a_first_iteration_says_nothing_of_long_trials():
    course = Course(sweep_of())  # Hyperband: the first rung is of one iteration
    for _ in range(8):
        course.run(5.0)
    assert course.left() is None


@pytest.mark.parametrize("waited", [0.0, 0.005, 0.4, 30.0])
def test_short_trials_whose_reports_travel_in_batches_are_like_the_others(waited):
    course = Course(sweep_of(early_terminate=None, max_iter=20, run_cap=100))
    for _ in range(50):
        course.run(*[0.005] * 20)
    course.start()
    course.now += waited
    assert course.left() == pytest.approx(50 * 0.1)


def test_trials_of_very_unequal_cost_give_no_estimate():
    course = Course(FULL)
    for seconds in (0.1, 0.1, 30.0, 0.1):
        course.run(*[seconds] * 4)
    assert course.left() is None


def test_trials_that_fail_early_take_less():
    course = Course(sweep_of(early_terminate=None, max_iter=4, run_cap=100))
    for place in range(20):
        if place % 2:
            course.run(1.0, 1.0, 1.0, 1.0)
            continue
        trial = course.start().segment.trial
        failed = Failed(trial, 1, Failure("raised", "no luck", ""), False, (), 0.0)
        course.study_state.apply(failed)
        course.time_left.observe(failed)
    assert course.left() == pytest.approx(80 * 2.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"metric": Metric("loss", "minimize", target=0.1)},
        {"limits": Limits(patience=50)},
        {"early_terminate": PBT(4, population=4, interval=1), "max_iter": None},
        {"max_iter": None},
    ],
    ids=["a target", "patience", "a population", "no last iteration"],
)
def test_nothing_is_shown_where_no_bound_is_known(changes):
    course = Course(sweep_of(**{"early_terminate": None, "max_iter": 4, "run_cap": 20} | changes))
    for _ in range(4):
        course.run(1.0)
    assert course.left() is None


def test_a_time_limit_cuts_what_is_left():
    limited = sweep_of(early_terminate=None, max_iter=4, run_cap=12, limits=Limits(max_time=30.0))
    course = Course(limited, spent=5.0)
    for _ in range(4):
        course.run(1.0, 1.0, 1.0, 1.0)
    assert course.left() == pytest.approx(30.0 - 5.0 - 16.0)


def test_where_nothing_but_the_time_limit_ends_a_sweep_that_is_what_is_left():
    course = Course(sweep_of(early_terminate=ASHA(9), limits=Limits(max_time=30.0)))
    course.run(1.0)
    assert course.left() == pytest.approx(29.0)


def test_a_pause_takes_nothing_off_the_time_limit():
    course = Course(sweep_of(early_terminate=ASHA(9), limits=Limits(max_time=30.0)))
    course.run(1.0)
    for number in (1, 3):
        left = course.left()
        course.time_left.observe(Steered("pause", "ada@there:7", number, {}, ""))
        course.time_left.observe(Steered("pause", "ada@there:7", number, {}, "the sweep is paused already"))
        course.now += 1000.0
        assert course.left() == left
        course.time_left.observe(Steered("resume", "ada@there:7", number + 1, {}, ""))
        assert course.left() == left
        course.run(1.0)
    assert course.left() == pytest.approx(27.0)


def test_nothing_is_shown_while_most_workers_are_still_to_come():
    course = Course(FULL)
    for _ in range(4):
        course.run(1.0, 1.0, 1.0, 1.0)
    assert course.left(1, wanted=4) is None
    assert course.left(3, wanted=4) is not None


def test_another_run_of_the_study_begins_with_nothing_known():
    course = Course(FULL)
    for _ in range(4):
        course.run(1.0, 1.0, 1.0, 1.0)
    course.time_left.observe(OPENED)
    assert course.left() is None


def test_ashas_promotions_go_on_as_they_went():
    course = Course(sweep_of(early_terminate=ASHA(4, eta=2), run_cap=60))
    left, at = None, 0.0
    while isinstance(event := course.study_state.next(), Started):
        if left is None and len(course.study_state.rows()) == 30:
            left, at = course.left(), course.now
        segment = event.segment
        assert segment.end is not None
        course.run(*[1.0] * (segment.end - segment.start))
    assert left == pytest.approx(course.now - at, rel=0.25)


@pytest.mark.parametrize("kind", ["random, even", "hyperband, uneven", "halving, even", "median, even"])
@pytest.mark.parametrize("live", [True, False], ids=["live", "journaled"])
def test_on_a_virtual_clock_what_is_shown_is_right_within_a_factor_of_two(kind, live):
    case = next(case for case in CASES if case.name == f"{kind}, 4 workers")
    shown = [(part, left, truth) for part, left, truth in shown_at(case, 0, live) if left is not None]
    assert [(part, left, truth) for part, left, truth in shown if not truth / 2 <= left <= 2 * truth] == []
    assert len(shown) >= len(MOMENTS) - 3
