"""TensorBoard and progress lines where several metrics decide, or where reported metrics are constrained."""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hpsearch.decision import Decision
from hpsearch.events import Entry, Event, Failed, Finished, Retried, Reverted, Saved, Started
from hpsearch.objective import Metric, Objective
from hpsearch.observers.base import Observed, Record
from hpsearch.observers.display import Snapshot
from hpsearch.observers.progress import LiveTable, PlainLines
from hpsearch.observers.tensorboard.observer import TensorBoardObserver
from hpsearch.observers.tensorboard.study_runs import FRONT, HYPERVOLUME, STUDY_RUN, best, by_tag, found_by
from hpsearch.observers.tensorboard.trial_runs import ITERATIONS_TAG, SECONDS_TAG, best_tag, trial_run
from hpsearch.results.best import hypervolumes
from hpsearch.results.course import Course
from hpsearch.study.journaled_state import JournaledState
from hpsearch.sweep.sweep import Sweep
from hpsearch.task import Workers
from hpsearch.trial import Failure, Report, Segment, Trial, TrialRow, TrialState
from tests.hpsearch.support.lives import Life
from tests.hpsearch.support.scripted import sweep_of
from tests.hpsearch.support.tensorboards import Board

NAN = math.nan
TWO = (Metric("accuracy", "maximize"), Metric("latency"))
REFERENCES = (Metric("accuracy", "maximize", reference=-1.0), Metric("latency", reference=4.0))
BOUND = ("bytes <= 2",)

Scalars = dict[str, list[tuple[int, float]]]


def observer(directory: Path, sweep: Sweep) -> TensorBoardObserver:
    made = TensorBoardObserver(Observed(directory, sweep, created=500.0))
    made.seen()
    return made


def scalars(directory: Path, run: str = STUDY_RUN) -> Scalars:
    """Read a run's scalars; of the study's those over trials begun, by what they are of."""
    accumulator = EventAccumulator(str(directory / "tensorboard" / run)).Reload()
    read = {tag: [(e.step, e.value) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}
    if run != STUDY_RUN:
        return {tag: points for tag, points in read.items() if not tag.startswith("hpsearch/")}
    end = by_tag("", "trials")
    return {tag.removesuffix(end): points for tag, points in read.items() if tag.endswith(end)}


def tell(tensorboard: TensorBoardObserver, event: Event, *decisions: Decision) -> None:
    tensorboard.observe(Record(1, 1000.0, event, decisions))


def start(tensorboard: TensorBoardObserver, trial: int, begun: int = 0, attempt: int = 1, width: int = 1) -> None:
    new = Trial(trial, {"x": 0.5}, 0, "random") if attempt == 1 else None
    tell(tensorboard, Started(Segment(trial, begun, 9, None, attempt, width), new))


def finish(tensorboard: TensorBoardObserver, report: Report, attempt: int = 1) -> None:
    tell(tensorboard, Finished(report.trial, attempt, report.iteration, None, (report,), False, 0.1))


def whole(tensorboard: TensorBoardObserver, trial: int, **metrics: float) -> None:
    start(tensorboard, trial)
    finish(tensorboard, Report(trial, 9, metrics, 0.1))


def test_the_study_has_the_best_of_each_goal_the_size_of_the_front_and_its_hypervolume(tmp_path):
    tensorboard = observer(tmp_path, sweep_of(metric=REFERENCES))
    whole(tensorboard, 0, accuracy=0.5, latency=2.0)
    whole(tensorboard, 1, accuracy=0.75, latency=3.0)
    whole(tensorboard, 2, accuracy=0.25, latency=2.5)
    whole(tensorboard, 3, accuracy=0.75, latency=1.0)
    whole(tensorboard, 4, accuracy=NAN, latency=0.0)
    whole(tensorboard, 5, accuracy=1.0, latency=5.0)  # beyond the reference: it adds nothing
    tensorboard.close()
    assert scalars(tmp_path) == {
        best("accuracy"): [(1, 0.5), (2, 0.75), (5, 0.75), (6, 1.0)],
        best("latency"): [(1, 2.0), (3, 2.0), (4, 1.0), (5, 1.0), (6, 1.0)],
        FRONT: [(1, 1), (2, 2), (3, 2), (4, 1), (5, 1), (6, 2)],
        HYPERVOLUME: [(1, 3.0), (2, 3.25), (3, 3.25), (4, 5.25), (5, 5.25), (6, 5.25)],
    }


def test_without_a_reference_of_each_goal_there_is_no_hypervolume(tmp_path):
    tensorboard = observer(tmp_path, sweep_of(metric=(REFERENCES[0], TWO[1])))
    whole(tensorboard, 0, accuracy=0.5, latency=2.0)
    tensorboard.close()
    assert set(scalars(tmp_path)) == {best("accuracy"), best("latency"), FRONT}


def test_trials_that_break_a_constraint_are_on_no_front_and_no_best_ones(tmp_path):
    tensorboard = observer(tmp_path, sweep_of(metric=REFERENCES, outcome_constraints=BOUND))
    whole(tensorboard, 0, accuracy=1.0, latency=0.0, bytes=3.0)
    whole(tensorboard, 1, accuracy=0.5, latency=2.0, bytes=2.0)
    whole(tensorboard, 2, accuracy=1.0, latency=0.0, bytes=NAN)
    start(tensorboard, 3)
    start(tensorboard, 1, 9, attempt=2)
    tell(tensorboard, Failed(1, 2, Failure("raised", "no", ""), False, ()))
    tensorboard.close()
    told = scalars(tmp_path)
    assert told[best("accuracy")][:2] == [(2, 0.5), (3, 0.5)]
    assert told[FRONT] == [(2, 1.0), (3, 1.0), (4, 0.0)]
    assert told[HYPERVOLUME] == [(2, 3.0), (3, 3.0), (4, 0.0)]
    assert [math.isnan(told[best(name)][2][1]) for name in ("accuracy", "latency")] == [True, True]


def test_of_one_goal_with_a_constraint_the_best_so_far_is_of_what_keeps_it(tmp_path):
    tensorboard = observer(tmp_path, sweep_of(metric=TWO[0], outcome_constraints=BOUND))
    told = [(0.9, 3.0), (0.5, 2.0), (0.8, 2.5), (0.625, 1.0), (0.25, 1.0)]
    start(tensorboard, 0)
    reports = tuple(Report(0, i, {"accuracy": a, "bytes": b}, 0.1) for i, (a, b) in enumerate(told, 1))
    tell(tensorboard, Finished(0, 1, 9, None, reports, False, 0.1))
    whole(tensorboard, 1, accuracy=0.99, bytes=2.5)
    whole(tensorboard, 2, accuracy=0.375, bytes=0.0)
    tensorboard.close()
    assert scalars(tmp_path, trial_run(0))[best_tag("accuracy")] == [(2, 0.5), (3, 0.5), (4, 0.625), (5, 0.625)]
    assert scalars(tmp_path)[best()] == [(1, 0.25), (2, 0.25), (3, 0.375)]
    assert FRONT not in scalars(tmp_path)
    assert best_tag("accuracy") not in scalars(tmp_path, trial_run(1))


def test_a_trial_that_is_taken_back_leaves_no_trace_in_the_front(tmp_path):
    tensorboard = observer(tmp_path, sweep_of(metric=REFERENCES))
    whole(tensorboard, 0, accuracy=0.5, latency=2.0)
    start(tensorboard, 1)
    first = Report(1, 1, {"accuracy": 0.25, "latency": 1.0}, 0.1)
    finish(tensorboard, first)
    start(tensorboard, 1, 1, attempt=2, width=2)
    tell(tensorboard, Saved(1, 2, 2, "c", (Report(1, 2, {"accuracy": 1.0, "latency": 0.0}, 0.1),)))
    tell(tensorboard, Reverted(1, 2, 1, "it went wrong", 0.1))
    tensorboard.flush()
    assert scalars(tmp_path, trial_run(1)) == {"accuracy": [(1, 0.25)], "latency": [(1, 1.0)]}
    whole(tensorboard, 2, accuracy=0.125, latency=3.0)
    start(tensorboard, 1, 1, attempt=3)
    finish(tensorboard, Report(1, 2, {"accuracy": 0.25, "latency": 3.0}, 0.1), attempt=3)
    tensorboard.close()
    told = scalars(tmp_path)
    assert told[FRONT] == [(1, 1), (2, 2), (3, 1)]
    assert told[best("latency")] == [(1, 2.0), (2, 1.0), (3, 2.0)]
    assert told[HYPERVOLUME] == [(1, 3.0), (2, 4.25), (3, 3.0)]


def test_a_trial_that_is_retried_is_on_the_front_again_with_what_it_had_before_it_failed(tmp_path):
    tensorboard = observer(tmp_path, sweep_of(metric=REFERENCES))
    whole(tensorboard, 0, accuracy=0.5, latency=2.0)
    start(tensorboard, 0, 9, attempt=2)
    tell(tensorboard, Failed(0, 2, Failure("raised", "no", ""), False, ()))
    start(tensorboard, 1)
    tensorboard.flush()
    tell(tensorboard, Retried(0), Decision(0, "withdraw", ""))
    whole(tensorboard, 2, accuracy=0.25, latency=3.0)
    tensorboard.close()
    assert scalars(tmp_path)[FRONT] == [(1, 0), (2, 0), (2, 1), (3, 1)]
    assert scalars(tmp_path)[best("accuracy")][-1] == (3, 0.5)


def test_what_is_reported_as_the_best_of_a_goal_is_shown_as_it_was_reported(tmp_path):
    """Nothing else has that name where several metrics decide."""
    tensorboard = observer(tmp_path, sweep_of(metric=(*TWO, Metric("best/accuracy", "maximize"))))
    whole(tensorboard, 0, **{"accuracy": 0.5, "latency": 2.0, "best/accuracy": 0.75})
    tensorboard.close()
    assert scalars(tmp_path, trial_run(0)) == {
        "accuracy": [(9, 0.5)],
        "latency": [(9, 2.0)],
        "best/accuracy": [(9, 0.75)],
    }


@pytest.mark.parametrize(
    ("metric", "shown"),
    [
        (TWO, {"accuracy": "accuracy", "latency": "latency", "bytes": "bytes"}),
        (TWO[0], {"accuracy": "accuracy", "bytes": "bytes", "best/accuracy": "best accuracy"}),
    ],
)
def test_the_dashboard_has_every_metric_that_decides_or_is_constrained(tmp_path, metric, shown):
    tensorboard = observer(tmp_path, sweep_of(metric=metric, outcome_constraints=BOUND))
    whole(tensorboard, 0, accuracy=0.5, latency=1.0, bytes=1.0)
    tensorboard.close()
    experiment = Board(tmp_path / "tensorboard").experiment()
    assert {info.name.tag: info.display_name for info in experiment.metric_infos} == {
        **shown,
        ITERATIONS_TAG: "iterations",
        SECONDS_TAG: "seconds",
    }


# Any life of a sweep of several goals


class Reporting(Life):
    """A life whose trials report numbers that event files hold exactly, and sometimes NaN."""

    def metrics(self) -> dict[str, float]:
        most = {"accuracy": 4, "latency": 5, "bytes": 3}
        metrics = {name: float(self.chance.randint(0, end)) for name, end in most.items()}
        if self.chance.random() < 0.05:
            metrics[self.chance.choice(sorted(metrics))] = NAN
        return metrics


def boxes(front: Sequence[tuple[float, float]]) -> int:
    """Count the unit squares between accuracy -1 and latency 4 that are dominated."""
    return sum(any(a > x and t <= y for a, t in front) for x in range(-1, 4) for y in range(4))


def unbeaten(points: Mapping[int, tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the non-dominated points."""
    return [
        (a, t)
        for a, t in points.values()
        if not any(b >= a and u <= t and (b, u) != (a, t) for b, u in points.values())
    ]


@settings(deadline=None, max_examples=25)
@given(
    constrained=st.booleans(),
    seed=st.integers(0, 2**32),
    workers=st.integers(1, 5),
    trouble=st.sampled_from([0.0, 0.3, 0.6]),
)
def test_after_each_segment_the_study_has_found_what_comparing_all_trials_says(constrained, seed, workers, trouble):
    sweep = sweep_of(metric=REFERENCES, outcome_constraints=BOUND if constrained else ())
    life = Reporting(sweep, seed, workers, trouble).run()
    state, course = JournaledState(sweep), Course()
    for entry in state.read(life.entries):
        course.take(entry, state)
        if not isinstance(entry.event, Finished | Failed | Retried | Reverted):
            continue
        rows = [row for row in state.rows() if row.score is not None and row.feasible]
        front = unbeaten({row.number: (row.values[0], row.values[1]) for row in rows})
        found = found_by(sweep.objective, course.end.front)
        best_ones = (max(a for a, _ in front), min(t for _, t in front)) if front else (NAN, NAN)
        by_hand = {best("accuracy"): best_ones[0], best("latency"): best_ones[1]}
        assert repr(found) == repr({**by_hand, FRONT: len(front), HYPERVOLUME: float(boxes(front))})


@settings(deadline=None, max_examples=15)
@given(constrained=st.booleans(), seed=st.integers(0, 2**32), workers=st.integers(1, 5))
def test_the_hypervolume_is_that_of_the_study(constrained, seed, workers, tmp_path_factory):
    path = tmp_path_factory.mktemp("study")
    sweep = sweep_of(metric=REFERENCES, outcome_constraints=BOUND if constrained else ())
    life = Reporting(sweep, seed, workers, 0.0).run()
    tensorboard = observer(path, sweep)
    entries = [Entry(500.0 + seq, entry.event, entry.followed) for seq, entry in enumerate(life.entries)]
    for seq, entry in enumerate(entries):
        tensorboard.observe(Record(seq, entry.time, entry.event, entry.followed.decisions))
    tensorboard.close()
    accumulator = EventAccumulator(str(path / "tensorboard" / STUDY_RUN)).Reload()
    tag = by_tag(HYPERVOLUME, "iterations")
    shown = {}
    if tag in accumulator.Tags()["scalars"]:
        shown = {event.step: event.value for event in accumulator.Scalars(tag)}
    grown = {iterations: volume for _, iterations, volume in hypervolumes(sweep, iter(entries), 500.0, None)}
    assert {step: shown[max(known for known in shown if known <= step)] for step in grown} == grown
    assert (shown == {}) == (grown == {})


# Progress

ROW = TrialRow(3, TrialState.COMPLETE, 9, 0.5, {"x": 0.25}, "random", None, None, 1.0, "")


def snapshot(sweep: Sweep, rows: Sequence[TrialRow], **changes: Any) -> Snapshot:
    given_: dict[str, Any] = {
        "name": "s",
        "objective": sweep.objective,
        "rungs": (),
        "counts": {TrialState.COMPLETE: 5},
        "leaders": rows,
        "workers": Workers(1, 1, 1),
        "iterations": 9,
        "total": None,
        "elapsed": 1.0,
        "remaining": None,
    }
    return Snapshot(**(given_ | changes))


def row(objective: Objective, trial: int, **metrics: float) -> TrialRow:
    return replace(ROW, number=trial, score=objective.reported(metrics), metrics=metrics)


def plain(*snapshots: Snapshot) -> list[str]:
    stream = io.StringIO()
    lines = PlainLines(stream, clock=itertools.count(0, 10).__next__)
    for one in snapshots:
        lines.show(one)
    lines.close()
    return [line.strip() for line in stream.getvalue().splitlines()]


def live(one: Snapshot) -> str:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    table = LiveTable(terminal)
    table.show(one)
    table.close()
    return terminal.getvalue()


def test_lines_tell_the_goals_and_how_far_the_front_reaches_wherever_it_changes():
    sweep = sweep_of(metric=TWO)
    objective = sweep.objective
    one = row(objective, 1, accuracy=0.5, latency=12.0)
    two = row(objective, 4, accuracy=0.25, latency=3.14159)
    none = snapshot(sweep, ())
    first, grown = snapshot(sweep, [one]), snapshot(sweep, [one, two])
    lines = plain(none, first, first, grown, grown)
    assert lines[0] == "s: maximize accuracy, minimize latency, 1 of 1 worker busy"
    assert [line.partition("front ")[2] for line in lines[1:]] == [
        "1 trial, accuracy 0.5, latency 12",
        "2 trials, accuracy 0.25 to 0.5, latency 3.142 to 12",
    ]
    assert "front 2 trials, accuracy 0.25 to 0.5, latency 3.142 to 12" in live(grown)
    assert "no accuracy and latency yet" in live(none)


def test_where_all_trials_break_a_constraint_lines_say_which_breaks_what_least():
    sweep = sweep_of(metric=TWO, outcome_constraints=(*BOUND, "loss >= 1"))
    least = row(sweep.objective, 7, accuracy=0.5, latency=12.0, bytes=2.5, loss=0.5)
    one = snapshot(sweep, [least])
    told = "front none: trial 7 breaks bytes <= 2 and loss >= 1 least"
    assert plain(one)[1].endswith(told)
    assert told in live(one)


def test_of_one_goal_the_best_says_what_it_breaks_and_what_is_constrained():
    sweep = sweep_of(metric=TWO[0], outcome_constraints=BOUND)
    bad = snapshot(sweep, [row(sweep.objective, 7, accuracy=0.75, bytes=2.5)])
    good = snapshot(sweep, [row(sweep.objective, 8, accuracy=0.5, bytes=2.0)])
    lines = plain(bad, good)
    assert lines[1].endswith("best accuracy 0.75 (trial 7, breaks bytes <= 2)")
    assert lines[2].endswith("best accuracy 0.5 (trial 8)")
    assert lines[3] == "best params: x=0.25"
    assert "best accuracy 0.75, trial 7 after 9 iterations, which breaks bytes <= 2" in strip(live(bad))
    assert "reports bytes=2" in strip(live(good))
    assert "breaks" not in live(good)


def strip(shown: str) -> str:
    """Leave out what only a terminal sees."""
    pieces = shown.split("\x1b[")
    return pieces[0] + "".join(piece.partition("m")[2] if "m" in piece[:6] else piece for piece in pieces[1:])
