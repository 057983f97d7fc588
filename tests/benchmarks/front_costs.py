"""What several goals cost the orchestrator for each trial, with many trials there already. CPU time."""

from __future__ import annotations

import math
import time
from random import Random

from hpsearch.events import Started
from hpsearch.objective import Fronts, Metric, Objective
from hpsearch.schedulers.asha import RankedRung
from hpsearch.study.trial_records import TrialRecords
from hpsearch.trial import JointScore, Report, Segment, Trial, TrialState
from tests.benchmarks.figures import Figure

Point = tuple[float, ...]
EVENTS = 20


def measure(counts: tuple[int, ...] = (1_000, 10_000)) -> list[Figure]:
    """Measure with points anywhere in a cube, and with points that are all on the front."""
    figures = []
    for goals in (2, 3):
        for count in counts:
            for kind, points in (("", _cube(count, goals)), (", all on the front", _sphere(count, goals))):
                if kind and count > min(counts):
                    continue  # nobody's front has as many
                what = f"{count:,} trials, {goals} goals{kind}"
                target = "at most 5" if count == min(counts) else ""
                figures += [
                    Figure(f"{what}: into the fronts", "ms", [_added(points)], target),
                    Figure(f"{what}: into a rung, and who goes on", "ms", [_judged(points)], target),
                    Figure(f"{what}: a trial ends, and who leads", "ms", [_led(points)], target),
                ]
    return figures


def _cube(count: int, goals: int) -> list[Point]:
    chance = Random(0)
    return [tuple(chance.random() for _ in range(goals)) for _ in range(count)]


def _sphere(count: int, goals: int) -> list[Point]:
    return [tuple(each / math.hypot(*point) for each in point) for point in _cube(count, goals)]


def _added(points: list[Point]) -> float:
    fronts = Fronts()
    for key, point in _first(points):
        fronts.add(key, point)
    began = time.process_time()
    for key, point in _last(points):
        fronts.add(key, point)
    return _each(began)


def _judged(points: list[Point]) -> float:
    rung = RankedRung(3, _objective(points))
    for key, point in _first(points):
        rung.add(JointScore(point), key)
    began = time.process_time()
    for key, point in _last(points):
        rung.add(JointScore(point), key)
        if next(rung.promotable(), None) is not None:
            rung.promote()
    return _each(began)


def _led(points: list[Point]) -> float:
    """Trials come in the order of their numbers here, as what is known isn't sorted."""
    records = TrialRecords(_objective(points))

    def end(trial: int) -> None:
        new = Trial(trial, {"x": trial}, trial, "random")
        records.start(Started(Segment(trial, 0, 1, None, 1), new))
        metrics = {f"m{goal}": value for goal, value in enumerate(points[trial])}
        records.count(trial, (Report(trial, 1, metrics, 0.1),))
        records.release(trial, TrialState.WAITING)
        records.decide(trial, TrialState.COMPLETE, "")

    for trial in range(len(points) - EVENTS):
        end(trial)
    records.leaders()
    began = time.process_time()
    for trial in range(len(points) - EVENTS, len(points)):
        end(trial)
        records.leaders()
    return _each(began)


def _first(points: list[Point]) -> list[tuple[int, Point]]:
    """Return all points but the last `EVENTS` with their indices, sorted so that they are added fast."""
    return sorted(enumerate(points[:-EVENTS]), key=lambda known: known[1])


def _last(points: list[Point]) -> list[tuple[int, Point]]:
    return list(enumerate(points))[-EVENTS:]


def _each(began: float) -> float:
    return (time.process_time() - began) / EVENTS * 1e3


def _objective(points: list[Point]) -> Objective:
    return Objective(tuple(Metric(f"m{goal}") for goal in range(len(points[0]))))
