"""Hits and regret of methods at given budgets: means over seeds, then over tasks, with the error of the mean."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from hpsearch.benchmark.runs import RunCourse, RunKey

__all__ = ["Mean", "hits_at", "over_tasks", "paired", "regret_at"]

At = Callable[[RunCourse, float], float]
"""Result of a run at a budget."""


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over tasks."""

    value: float
    error: float
    """Its standard error; NaN for a single task."""

    def __str__(self) -> str:
        return f"{self.value:.3f}" if math.isnan(self.error) else f"{self.value:.3f} ± {self.error:.3f}"


def hits_at(course: RunCourse, budget: float) -> float:
    """Return whether a run had a report as good as the final values of the best rows: 1.0 or 0.0."""
    return float(any(course.hit[: bisect_right(course.at, budget)]))


def regret_at(course: RunCourse, budget: float) -> float:
    """Return the regret of what a run had found best: 1 before anything was reported."""
    place = bisect_right(course.at, budget)
    return course.regret[place - 1] if place else 1.0


def over_tasks(courses: Mapping[RunKey, RunCourse], at: At, budget: float) -> Mean:
    """Return the mean over tasks of the means over seeds."""
    return _mean(list(_by_task(courses, at, budget).values()))


def paired(one: Mapping[RunKey, RunCourse], other: Mapping[RunKey, RunCourse], at: At, budget: float) -> Mean:
    """Return the differences between two methods, by task."""
    ours, theirs = _by_task(one, at, budget), _by_task(other, at, budget)
    return _mean([ours[task] - theirs[task] for task in ours if task in theirs])


def _by_task(courses: Mapping[RunKey, RunCourse], at: At, budget: float) -> Mapping[str, float]:
    found: dict[str, list[float]] = defaultdict(list)
    for key, course in courses.items():
        found[key.task].append(at(course, budget))
    return {task: fmean(values) for task, values in found.items()}


def _mean(values: Sequence[float]) -> Mean:
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return Mean(fmean(values) if values else math.nan, error)
