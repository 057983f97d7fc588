"""The metrics that a search optimizes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from hpsearch.config.settings import HOW, Settings
from hpsearch.trial import Goal

__all__ = ["Metric", "without_targets"]


@dataclass(frozen=True)
class Metric(Settings):
    """A metric to optimize, alone or with others."""

    name: str
    """A key of the reported mapping."""
    goal: Goal = "minimize"
    """Which values are better: `minimize` or `maximize`."""
    scope: Literal["last", "best"] = "last"
    """Which report gives a trial's value: the `last`, or the `best` so far. With several metrics always the last."""
    target: Annotated[float | None, HOW] = None
    """The sweep ends (exit code 0) when a report is this good or better; with several metrics, all in one report; none:
    no target."""
    reference: Annotated[float | None, HOW] = None
    """With several metrics: the worst acceptable value, from which the hypervolume is measured."""

    def reached(self, value: float) -> bool:
        """Return whether a value is as good as the target or better; False for NaN, or without a target."""
        if self.target is None or math.isnan(value):
            return False
        return value <= self.target if self.goal == "minimize" else value >= self.target

    def signed(self, value: float) -> float:
        """Return the value to minimize: negated if the goal is to maximize."""
        return value if self.goal == "minimize" else -value


def without_targets(goals: Iterable[Metric]) -> tuple[Metric, ...]:
    """Return the same goals without targets."""
    return tuple(replace(goal, target=None) for goal in goals)
