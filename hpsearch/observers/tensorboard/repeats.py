"""The run of studies that differ only in their seed: median and quartiles of their best values."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence

from hpsearch.objective import Objective
from hpsearch.observers.tensorboard.event_file import EventFiles
from hpsearch.observers.tensorboard.study_runs import FRONT, HYPERVOLUME, amount_of, best, by_tag, found_by
from hpsearch.results.comparison import AXES, Axis
from hpsearch.results.course import CourseSoFar, Moment
from hpsearch.results.samples import spread

__all__ = ["Repeats", "spread_tags"]

_MOST_POINTS = 400
"""Less than TensorBoard keeps of a scalar: of more it draws lots for each tag, and the three of a chart must fit."""


def spread_tags(what: str, axis: Axis) -> tuple[str, str, str]:
    """Name the scalars of median, lower and upper quartile."""
    tag = by_tag(what, axis)
    return f"{tag}, median", f"{tag}, lower quartile", f"{tag}, upper quartile"


class Repeats:
    """Writes the common course of studies that differ only in their seed, as far as all of them are.

    Args:
        files: The event files.
        run: The run's name.
        objective: The objective.
        courses: Course of each study.
    """

    def __init__(self, files: EventFiles, run: str, objective: Objective, courses: Sequence[CourseSoFar]) -> None:
        self._files, self._run, self._objective, self._courses = files, run, objective, courses
        better = {best(goal.name if objective.several else None): goal.goal == "maximize" for goal in objective.goals}
        self._more_is_better: Mapping[str, bool] = {**better, FRONT: True, HYPERVOLUME: True}
        self._written: dict[str, tuple[int, tuple[float, ...]]] = {}
        self._known: list[Moment] = []

    def flush(self) -> None:
        """Write new values."""
        now = [course.now for course in self._courses]
        if now == self._known:
            return
        self._known = now
        for axis in AXES:
            end = min(amount_of(moment, axis) for moment in now)
            steps = _thinned(sorted({step for course in self._courses for step in _steps(course, axis, end)}))
            for step in steps:
                moments = [_at(course.changes, axis, step) for course in self._courses]
                found = [found_by(self._objective, () if moment is None else moment.front) for moment in moments]
                for what in found[0]:
                    self._put(what, axis, step, [one[what] for one in found])

    def _put(self, what: str, axis: Axis, step: int, values: Sequence[float]) -> None:
        known = [None if math.isnan(value) else value for value in values]
        over = spread(known, self._more_is_better[what])
        if over.median is None or over.low is None or over.high is None:
            return  # too many have no value yet
        three = over.median, over.low, over.high
        tags = spread_tags(what, axis)
        last_step, last = self._written.get(tags[0], (-1, ()))
        if step > last_step or (step == last_step and three != last):
            self._written[tags[0]] = step, three
            when = max(moment.time for moment in self._known)
            self._files.scalars(self._run, when, step, list(zip(tags, three, strict=True)))


def _steps(course: CourseSoFar, axis: Axis, end: int) -> set[int]:
    """Return the steps at and before each change of a study's best value, which draw stairs, and the end."""
    changes = {amount_of(moment, axis) for moment in course.changes}
    return {step for step in (*changes, *(step - 1 for step in changes), end) if 0 <= step <= end}


def _thinned(steps: Sequence[int]) -> Sequence[int]:
    apart = math.ceil(len(steps) / _MOST_POINTS)
    return [step for place, step in enumerate(steps) if place % apart == 0 or place == len(steps) - 1] if steps else []


def _at(changes: Sequence[Moment], axis: Axis, step: int) -> Moment | None:
    """Return what was found when so much was spent; None: nothing."""
    place = bisect_right(changes, step, key=lambda moment: amount_of(moment, axis))
    return changes[place - 1] if place else None
