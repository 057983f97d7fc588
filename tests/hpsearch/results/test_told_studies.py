"""What studies tell whose journals were written by hand, at times of our choosing: their cost, their idle time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hpsearch.decision import Decision, Followed
from hpsearch.events import (
    ASK_TELL,
    Ended,
    Entry,
    Event,
    Failed,
    Finished,
    Opened,
    Pruned,
    Retried,
    Saved,
    Started,
    Steered,
)
from hpsearch.page.workers import workers
from hpsearch.results.study import Study, study_of
from hpsearch.trial import Failure, Report, Segment, Trial, TrialState
from tests.hpsearch.support.scripted import sweep_of

SWEEP = sweep_of(early_terminate=None, max_iter=4, run_cap=9)
OPENED = Opened("inline", 1, "me@here:1", "hpsearch run")


def started(trial: int, attempt: int = 1, start: int = 0) -> Started:
    new = Trial(trial, {"x": 0.5}, 7, "random") if attempt == 1 else None
    return Started(Segment(trial, start, 4, None, attempt), new, bracket=0, rung=0)


def reports(trial: int, *losses: float) -> tuple[Report, ...]:
    return tuple(Report(trial, place, {"loss": loss}, 1.0) for place, loss in enumerate(losses, 1))


def finished(trial: int, *losses: float, attempt: int = 1, cut: bool = False) -> Finished:
    return Finished(trial, attempt, len(losses), None, reports(trial, *losses), cut, 1.0)


def steered(verb: str, request: int | None = 1) -> Steered:
    return Steered(verb, "ada@there:7", request, {}, "")


def told(events: Sequence[tuple[float, Event]], decided: Sequence[tuple[int, Decision]] = ()) -> Study:
    """Return a study that no process runs; `decided` are decisions, with the index of the event that caused them."""
    entries = [
        Entry(1000.0 + time, event, Followed([decision for at, decision in decided if at == place]))
        for place, (time, event) in enumerate(events)
    ]
    return study_of(Path("told"), {"sweep": SWEEP.to_json()}, entries, lambda: False, lambda: iter(entries))


def idle(events: Sequence[tuple[float, Event]]) -> tuple[str, str, str]:
    section = workers(told(events))
    assert section is not None
    found = re.search(r"idle for (.*) of (.*) \((\d+%)\)", section.paragraphs[0])
    assert found is not None
    return found[1], found[2], found[3]


def test_nobody_is_idle_while_a_study_is_paused():
    events: list[tuple[float, Event]] = [
        (0.0, OPENED),
        (0.0, started(0)),
        (10.0, steered("pause")),
        (20.0, finished(0, 1.0, cut=True)),  # it ran on to its next report
        (5020.0, steered("resume", 2)),
        (5030.0, started(0, 2)),
        (5060.0, finished(0, 4.0, 3.0, 2.0, 1.0, attempt=2)),
    ]
    assert idle(events) == ("10 s", "1 min 0 s", "17%")


def test_a_pause_in_which_nothing_ran_and_that_a_process_died_in_is_no_idle_time():
    events: list[tuple[float, Event]] = [
        (0.0, OPENED),
        (0.0, started(0)),
        (30.0, finished(0, 1.0, 1.0, 1.0, 1.0)),
        (40.0, steered("pause")),
        (5000.0, OPENED),
        (5000.0, started(1)),
        (5060.0, finished(1, 1.0, 1.0, 1.0, 1.0)),
    ]
    assert idle(events) == ("10 s", "1 min 40 s", "10%")


def test_what_a_killed_process_ran_ends_before_a_command_steers_the_study_later():
    events: list[tuple[float, Event]] = [
        (0.0, OPENED),
        (0.0, started(0)),
        (10.0, finished(0, 1.0, 1.0, 1.0, 1.0)),
        (10.0, started(1)),
        (20.0, started(2)),  # then it was killed
        (9000.0, steered("prune", None)),
        (9000.0, Pruned(2, "pruned by ada@there")),
        (9990.0, OPENED),
        (9990.0, started(1, 2)),
        (10000.0, finished(1, 1.0, 1.0, 1.0, 1.0, attempt=2)),
    ]
    assert idle(events) == ("0.0 s", "30 s", "0%")


def test_a_pruned_trial_whose_process_was_killed_has_stopped():
    events: list[tuple[float, Event]] = [
        (0.0, OPENED),
        (0.0, started(0)),
        (0.0, started(1)),
        (1.0, steered("prune")),
        (1.0, Pruned(0, "pruned by ada@there")),
    ]
    pruned, other = told(events).trials
    assert (pruned.state, pruned.reason) == (TrialState.STOPPED, "pruned by ada@there")
    assert other.state is TrialState.WAITING


def test_what_a_search_has_cost_is_never_taken_back():
    events: list[tuple[float, Event]] = [
        (0.0, OPENED),
        (0.0, started(0)),
        (1.0, Failed(0, 1, Failure("raised", "no", ""), False, reports(0, 9.0, 9.0, 9.0))),
        (1.0, started(1)),
        (2.0, finished(1, 5.0, 5.0, 5.0, 5.0)),
        (3.0, Retried(0)),
        (3.0, started(0, 2)),
        (4.0, finished(0, 4.0, attempt=2)),
    ]
    course = told(events, [(5, Decision(0, "withdraw", "its rung isn't decided"))]).course()
    assert [(moment.iterations, moment.front) for moment in course.changes] == [(7, (5.0,)), (8, (4.0,))]
    assert course.end.iterations == 8


def test_what_a_running_trial_has_saved_is_the_best_of_the_course_as_it_is_of_the_study():
    events: list[tuple[float, Event]] = [
        (0.0, OPENED),
        (0.0, started(0)),
        (1.0, finished(0, 9.0, 9.0, 9.0, 5.0)),
        (1.0, started(1)),
        (2.0, Saved(1, 1, 2, "trials/00001/1/hpsearch-checkpoint-2", reports(1, 6.0, 4.0))),  # then it was killed
    ]
    study = told(events)
    assert [(moment.iterations, moment.front) for moment in study.course().changes] == [(4, (5.0,)), (6, (4.0,))]
    assert study.course().end.front == tuple(row.score for row in study.leaders)
    worse = finished(1, 6.0, 4.0, 7.0, 7.0)
    assert told([*events, (3.0, worse)]).course().end.front == (5.0,)


def test_the_time_of_a_search_begins_with_the_first_trial_of_each_process_and_holds_no_pause():
    whole = 1.0, 1.0, 1.0, 1.0
    events: list[tuple[float, Event]] = [
        (0.0, OPENED),
        (9.0, started(0)),
        (19.0, finished(0, *whole)),
        (20.0, steered("pause")),
        (5020.0, steered("resume", 2)),
        (5030.0, started(1)),
        (5040.0, finished(1, *whole)),
        (5041.0, Ended("interrupted")),
        (9000.0, OPENED),
        (9007.0, started(2)),
        (9017.0, finished(2, 0.5, 0.5, 0.5, 0.5)),
    ]
    course = told(events).course()
    assert [(moment.seconds, moment.starting) for moment in course.changes] == [(10.0, 9.0), (42.0, 16.0)]
    assert (course.end.seconds, course.end.starting) == (42.0, 16.0)
    begun = told(events[:2]).course().end
    assert (begun.trials, begun.seconds, begun.starting) == (1, 0.0, 9.0)
    assert told(events[:1]).course().end.seconds == 0.0


def test_a_study_whose_trials_are_told_of_counts_from_its_first_one_also_where_a_clock_was_set_back():
    whole = 1.0, 1.0, 1.0, 1.0
    events: list[tuple[float, Event]] = [
        (0.0, Opened(ASK_TELL, None, "me@here:1", "")),
        (5.0, started(0)),
        (15.0, finished(0, 2.0, 2.0, 2.0, 2.0)),
        (15.0, started(1)),
        (8.0, finished(1, *whole)),
    ]
    course = told(events).course()
    assert [(moment.seconds, moment.starting) for moment in course.changes] == [(10.0, 0.0), (10.0, 0.0)]
