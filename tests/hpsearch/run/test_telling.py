"""What may be told of a trial that was asked for, and what is refused."""

from __future__ import annotations

import math

import pytest

from hpsearch.errors import TellError, TrainableError
from hpsearch.events import Finished
from hpsearch.run.telling import asked_trial, check_reports, open_segment
from hpsearch.space import Space, Uniform
from hpsearch.study.trial_record import TrialRecord, TrialResult
from hpsearch.trial import Segment, Trial


def record(start: int = 0, end: int | None = 3, attempt: int = 1, known: int | None = None) -> TrialRecord:
    """A trial that is open from `start` to `end`, of which iterations up to `known` were reported."""
    made = TrialRecord(Trial(4, {"opt.x": 0.5}, 77, "random"))
    made.segment, made.attempts = Segment(4, start, end, None, attempt), attempt
    made.result = TrialResult(start if known is None else known)
    return made


def losses(*values: float) -> list[dict[str, float]]:
    return [{"loss": value} for value in values]


@pytest.mark.parametrize(
    ("trial", "count", "iteration", "more", "iterations", "ends"),
    [
        (record(), 3, None, {}, [1, 2, 3], True),
        (record(start=3, end=9), 6, None, {}, [4, 5, 6, 7, 8, 9], True),
        (record(known=2), 1, None, {}, [3], True),
        (record(end=1), 1, None, {}, [1], True),
        (record(), 1, 3, {}, [3], True),  # the last one alone
        (record(), 1, 1, {"goes_on": True}, [1], False),
        (record(known=1), 1, 2, {"goes_on": True}, [2], False),
        (record(known=2), 1, 3, {"goes_on": True}, [3], True),
        (record(), 1, 3, {"goes_on": True}, [3], True),
        (record(), 2, None, {"ends": True}, [1, 2], True),
        (record(known=2), 0, None, {"ends": True}, [], True),
        (record(start=1, end=3), 0, None, {"ends": True}, [], True),
        (record(end=None), 1, None, {}, [1], True),
        (record(end=None), 4, None, {}, [1, 2, 3, 4], True),
        (record(end=None, known=4), 1, None, {"goes_on": True}, [5], False),
        (record(end=None, known=4), 0, None, {"ends": True}, [], True),
    ],
)
def test_the_iterations_that_are_to_be_told_are_taken(trial, count, iteration, more, iterations, ends):
    told = check_reports(trial, ("loss",), losses(*[0.5] * count), iteration, 6.0, **{"ends": False, **more})
    assert [report.iteration for report in told.reports] == iterations
    assert told.iteration == (iterations[-1] if iterations else trial.result.iterations)
    assert isinstance(told, Finished) == ends
    assert sum(report.seconds for report in told.reports) == pytest.approx(6.0 if iterations else 0.0)


@pytest.mark.parametrize(
    ("trial", "count", "iteration", "more", "problem"),
    [
        (record(), 4, None, {}, "to run to iteration 3, got a report of iteration 4"),
        (record(), 4, None, {"ends": True}, "to run to iteration 3, got a report of iteration 4"),
        (record(), 1, 4, {"goes_on": True}, "to run to iteration 3, got a report of iteration 4"),
        (record(), 2, None, {}, "iteration 3 is missing"),
        (record(), 1, None, {}, "iterations 2 to 3 are missing: tell all of them, the last one alone with iteration=3"),
        (record(), 1, 2, {"goes_on": True}, "iteration 1 comes next, or 3 alone; got 2"),
        (record(known=1), 1, 3, {"goes_on": True}, "iteration 2 comes next; got 3"),
        (record(known=2), 1, 2, {"goes_on": True}, "iteration 2 was told already; the next one is 3"),
        (record(start=3, end=9), 1, 3, {}, "iteration 3 was told already; the next one is 4"),
        (record(end=None), 1, 5, {"goes_on": True}, "iteration 1 comes next; got 5"),
        (record(), 2, 3, {}, "`iteration` belongs to one report, got 2"),
        (record(), 0, 3, {"ends": True}, "`iteration` belongs to one report, got 0"),
        (record(), 0, None, {}, "at least one report is needed"),
        (record(), 0, None, {"ends": True}, "must have a report, but has none"),
        (record(end=None), 0, None, {}, "at least one report is needed"),
    ],
)
def test_other_iterations_are_refused(trial, count, iteration, more, problem):
    with pytest.raises(TellError, match=f"^trial 4.*{problem}"):
        check_reports(trial, ("loss",), losses(*[0.5] * count), iteration, 6.0, **{"ends": False, **more})


@pytest.mark.parametrize(
    ("metrics", "problem"),
    [
        ({"lsos": 1.0}, "must have the sweep's metric 'loss'"),
        ({}, "must have the sweep's metric 'loss'"),
        ({"loss": "0.5"}, "'loss' must be a number"),
        ({"loss": None}, "'loss' must be a number"),
        (0.5, "a report must be a mapping"),
        ({"loss": 1.0, 3: 2.0}, "the name of a metric must be a text"),
    ],
)
def test_a_report_holds_numbers_and_the_metric(metrics, problem):
    with pytest.raises(TrainableError, match=problem):
        check_reports(record(end=1), ("loss",), [metrics], None, 1.0, ends=False)


def test_nan_may_be_told():
    (report,) = check_reports(record(end=1), ("loss",), losses(math.nan), None, 1.0, ends=False).reports
    assert math.isnan(report.metrics["loss"])


def test_the_attempt_is_named_where_there_was_another():
    assert open_segment(record(), None).attempt == open_segment(record(), 1).attempt == 1
    assert open_segment(record(attempt=2), 2).attempt == 2
    with pytest.raises(TellError, match="given out 2 times: say which attempt is meant"):
        open_segment(record(attempt=2), None)
    with pytest.raises(TellError, match="attempt 1 of trial 4 isn't open any more"):
        open_segment(record(attempt=2), 1)
    with pytest.raises(TellError, match="attempts 1 to 2, got attempt 3"):
        open_segment(record(attempt=2), 3)


def test_a_trial_says_what_to_run_and_how_far():
    space = Space.from_parameters({"opt": {"x": Uniform(0.0, 1.0)}})
    asked = asked_trial(record(start=1, end=3, attempt=2, known=2), space)
    assert (asked.number, asked.attempt, asked.seed, asked.start, asked.end) == (4, 2, 77, 2, 3)
    assert asked.params == {"opt": {"x": 0.5}}
    assert asked.flat == {"opt.x": 0.5}
    assert asked.parent is None
