"""What makes one trial better than another: which metric decides, which values are valid, and how trials rank."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, TypeGuard

from hpsearch.settings import HOW, Settings
from hpsearch.trial import Goal

__all__ = ["Metric", "Objective", "is_valid", "reaches"]


@dataclass(frozen=True)
class Metric(Settings):
    """A reported number that decides."""

    name: str
    """A key of the mapping that the trainable reports."""
    goal: Goal = "minimize"
    """Which values are better: `minimize` or `maximize`."""
    scope: Literal["last", "best"] = "last"
    """Which of a trial's reports gives its value: the `last`, or the `best` so far, whatever came after it."""
    target: Annotated[float | None, HOW] = None
    """The sweep ends (exit code 0) as soon as any trial reports a value as good as this one, or better; none: it
    doesn't."""


def is_valid(value: float | None) -> TypeGuard[float]:
    """Say whether a value is one: an infinity is, NaN isn't."""
    return value is not None and not math.isnan(value)


def reaches(value: float | None, target: float | None, goal: Goal) -> bool:
    """Say whether a value is as good as a target or better; NaN never is, and where there is no target nothing is."""
    if target is None or not is_valid(value):
        return False
    return value <= target if goal == "minimize" else value >= target


@dataclass(frozen=True, slots=True)
class Objective:
    """What a sweep searches for.

    It ranks sets of trials, never pairs: with several metrics the best ones of a set are a front.
    """

    metric: Metric

    def reported(self, metrics: Mapping[str, float]) -> float | None:
        """Give what a report says of the metric, NaN included; None where it says nothing."""
        return metrics.get(self.metric.name)

    def reaches(self, value: float | None) -> bool:
        """Say whether a value is as good as the metric's target, or better."""
        return reaches(value, self.metric.target, self.metric.goal)

    def rank(self, values: Mapping[int, float | None]) -> list[int]:
        """Order trials, best first: numbers by the goal, then NaN, then None (failed); ties to the lower trial.

        Args:
            values: Trial to value.
        """
        return sorted(values, key=lambda trial: (*self.place(values[trial]), trial))

    def best(self, values: Mapping[int, float | None]) -> int | None:
        """Give the trial that `rank` puts first; None where no value is valid."""
        valid = {trial: value for trial, value in values.items() if is_valid(value)}
        return min(valid, key=lambda trial: (*self.place(valid[trial]), trial), default=None)

    def improves(self, value: float | None, former: float | None) -> bool:
        """Say whether a value of one trial is better than a former one of the same trial."""
        return self.place(value) < self.place(former)

    def replaces(self, value: float | None, former: float | None) -> bool:
        """Say whether what a trial reports is its value from now on, and the former one no more.

        Of equal ones it is the newer: there may be a checkpoint of it.
        """
        return self.metric.scope == "last" or not self.improves(former, value)

    def loss(self, before: float, after: float) -> float:
        """Give by how much a value is worse than before, less than 0 where it is better; NaN for like infinities."""
        return after - before if self.metric.goal == "minimize" else before - after

    def place(self, value: float | None) -> tuple[int, float]:
        """Give what orders values as `rank` does: the less, the better."""
        if not is_valid(value):
            return (2 if value is None else 1), 0.0
        return 0, value if self.metric.goal == "minimize" else -value
