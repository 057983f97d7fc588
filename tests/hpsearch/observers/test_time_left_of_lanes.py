"""The time left of a sweep whose workers train several trials beside each other."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import hpsearch
from hpsearch.events import Event, Finished, Started
from hpsearch.observers.time_left import TimeLeft
from hpsearch.study.state import StudyState
from hpsearch.sweep.sweep import Resources, Sweep
from hpsearch.task import Workers
from hpsearch.trial import Report, Segment
from tests.hpsearch.support.lives import OPENED
from tests.hpsearch.support.scripted import sweep_of

Cost = Callable[[list[Segment]], list[float]]
"""What a round takes, of each trial's charge for it."""


def shared(base: float, each: float) -> Cost:
    return lambda segments: [base / len(segments) + each] * len(segments)


def of_kinds(segments: list[Segment]) -> list[float]:
    """Trials of three shapes: those of one share a step, and it costs more the larger they are."""
    kinds = [segment.trial % 3 for segment in segments]
    return [(1.0 + kind) * (1.0 / kinds.count(kind) + 0.1) for kind in kinds]


def uneven(segments: list[Segment]) -> list[float]:
    """Nothing is shared, and one trial costs thirty times as much as another."""
    return [30.0 ** (segment.trial * 7 % 10 / 10) for segment in segments]


class Course:
    """A sweep on workers that train all their trials for an iteration in a round, which all begin at once."""

    def __init__(self, sweep: Sweep, workers: int, live: bool = True) -> None:
        self.study_state, self.time_left = StudyState(sweep), TimeLeft(sweep, live=live)
        self.lanes, self.live = sweep.resources.lanes, live
        self.on: list[dict[int, tuple[Segment, list[Report]]]] = [{} for _ in range(workers)]
        self.looks: list[tuple[float, float | None]] = []
        self.now = 0.0
        self.losses = random.Random(7)
        self.take(OPENED)

    def take(self, event: Event) -> None:
        self.study_state.apply(event)
        self.time_left.observe(event)

    def fill(self) -> None:
        while len(emptiest := min(self.on, key=len)) < self.lanes and isinstance(e := self.study_state.next(), Started):
            self.take(e)
            emptiest[e.segment.trial] = e.segment, []

    def look(self) -> None:
        workers = Workers(len(self.on), sum(map(bool, self.on)), len(self.on))
        state = self.study_state
        self.looks.append((self.now, self.time_left.estimate(state.rungs(), state.total(), workers, self.now)))

    def round(self, cost: Cost) -> None:
        charged = [cost([segment for segment, _ in running.values()]) if running else [] for running in self.on]
        self.now += max(map(sum, charged))
        for running, charges in zip(self.on, charged, strict=True):
            for (segment, reports), seconds in zip(list(running.values()), charges, strict=True):
                at = segment.start + len(reports) + 1
                reports.append(Report(segment.trial, at, {"loss": self.losses.random()}, seconds))
                if self.live:
                    self.time_left.report(reports[-1:])
                if at == segment.end:
                    del running[segment.trial]
                    told = tuple(reports)
                    worked = sum(report.seconds for report in told)
                    self.take(Finished(segment.trial, segment.attempt, at, "checkpoint", told, False, worked))

    def run(self, cost: Cost) -> None:
        self.fill()
        while any(self.on):
            self.look()
            self.round(cost)
            self.fill()


HYPERBAND: dict[str, Any] = {"early_terminate": hpsearch.Hyperband(max_iter=27), "run_cap": None}
HALVING: dict[str, Any] = {"early_terminate": hpsearch.SuccessiveHalving(81, min_iter=1, eta=3, trials=81)}
RANDOM: dict[str, Any] = {"early_terminate": None, "max_iter": 9, "run_cap": 70}
COSTS = {"one step": shared(1.0, 0.1), "nothing shared": shared(0.0, 1.0), "three shapes": of_kinds, "uneven": uneven}


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("kind", [HYPERBAND, HALVING, RANDOM], ids=["hyperband", "halving", "random"])
def test_what_is_shown_is_nearly_always_right_within_a_factor_of_two(kind, cost, workers):
    course = Course(sweep_of(**kind, resources=Resources(trials_per_worker=16)), workers)
    course.run(cost)
    shown = [(at, left, course.now - at) for at, left in course.looks if left is not None]
    wrong = [look for look in shown if not look[2] / 2 <= look[1] <= 2 * look[2]]
    assert len(wrong) <= 0.06 * len(shown)
    assert len(shown) > (0.25 if cost is uneven else 0.6) * len(course.looks)


def test_the_journal_alone_doesnt_say_who_was_beside_whom():
    course = Course(sweep_of(**HYPERBAND, resources=Resources(trials_per_worker=16)), 1, live=False)
    course.run(shared(1.0, 0.1))
    assert {left for _, left in course.looks} == {None}


def test_while_a_trial_has_several_workers_nothing_is_shown():
    course = Course(sweep_of(**RANDOM, resources=Resources(trials_per_worker=16, max_workers_per_trial=2)), 2)
    course.fill()
    for _ in range(6):
        course.round(shared(1.0, 0.1))
    course.look()
    segment = replace(next(iter(course.on[0].values()))[0], width=2)
    course.time_left.observe(Started(segment, None))
    course.look()
    assert course.looks[-2][1] is not None
    assert course.looks[-1][1] is None
