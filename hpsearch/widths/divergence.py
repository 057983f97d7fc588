"""Whether a trial went wrong because it was given more workers than before."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hpsearch.objective import Metric

__all__ = ["diverged"]


def diverged(
    metrics: Mapping[str, float], before: Mapping[str, float], goals: Sequence[Metric], tolerance: float | None
) -> str | None:
    """Say in words how a trial diverged, None where it didn't.

    Args:
        metrics: What it reports now; without the goals where it reported nothing.
        before: What it reported before it was widened; without the goals, or NaN, where it had no value.
        goals: Say which values are worse. A trial has diverged where one of them has.
        tolerance: By what share of its value before each may be worse; None: by any.
    """
    told = ((goal.name, _worse(goal, metrics.get(goal.name), before.get(goal.name), tolerance)) for goal in goals)
    return next((f"{name} {how}" for name, how in told if how is not None), None)


def _worse(goal: Metric, value: float | None, before: float | None, tolerance: float | None) -> str | None:
    if value is None:
        return None
    had = before is not None and not math.isnan(before)
    if math.isnan(value):
        return f"NaN after {before:.6g}" if had else "NaN"
    if tolerance is None or before is None or not had:
        return None
    if not goal.signed(value) - goal.signed(before) > tolerance * abs(before):  # that of like infinities is NaN
        return None
    return f"{value:.6g} after {before:.6g}, worse by more than the {tolerance:.0%} of scaling.tolerance"
