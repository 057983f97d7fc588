"""Order the trials of a rung from best to worst."""

from __future__ import annotations

import math
from collections.abc import Iterable

from hpsearch.schedulers.base import Outcome
from hpsearch.trial import Goal

__all__ = ["rank"]


def rank(outcomes: Iterable[Outcome], goal: Goal) -> list[Outcome]:
    """Order outcomes, best first: numbers by `goal`, then NaN, then failed; ties to the lower number."""
    sign = 1 if goal == "minimize" else -1

    def key(outcome: Outcome) -> tuple[int, float, int]:
        if outcome.value is None:
            return 2, 0.0, outcome.trial
        if math.isnan(outcome.value):
            return 1, 0.0, outcome.trial
        return 0, sign * outcome.value, outcome.trial

    return sorted(outcomes, key=key)
