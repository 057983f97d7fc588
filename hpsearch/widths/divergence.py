"""Detection of trials that diverge after they were widened."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hpsearch.objective import Metric

__all__ = ["diverged"]


def diverged(
    metrics: Mapping[str, float], before: Mapping[str, float], goals: Sequence[Metric], tolerance: float | None
) -> str | None:
    """Return in words how a trial diverged; None if it did not.

    Args:
        metrics: The metrics it reports now. Goals may be missing.
        before: The metrics it reported before it was widened. Goals may be missing or NaN.
        goals: The goals. A trial has diverged if one of them has.
        tolerance: Maximum loss, relative to the value before; None: only NaN is a divergence.
    """
    reasons = ((goal.name, _worse(goal, metrics.get(goal.name), before.get(goal.name), tolerance)) for goal in goals)
    return next((f"{name} {reason}" for name, reason in reasons if reason is not None), None)


def _worse(goal: Metric, value: float | None, before: float | None, tolerance: float | None) -> str | None:
    if value is None:
        return None
    had = before is not None and not math.isnan(before)
    if math.isnan(value):
        return f"NaN after {before:.6g}" if had else "NaN"
    if tolerance is None or before is None or not had:
        return None
    if not goal.signed(value) - goal.signed(before) > tolerance * abs(before):  # NaN if both are infinite
        return None
    return f"{value:.6g} after {before:.6g}, worse by more than the {tolerance:.0%} of scaling.tolerance"
