"""Whether a trial went wrong because it was given more workers than before."""

from __future__ import annotations

import math

from hpsearch.trial import Goal

__all__ = ["diverged"]


def diverged(value: float | None, before: float | None, goal: Goal, tolerance: float | None) -> str | None:
    """Say in words how a trial diverged, None where it didn't.

    Args:
        value: Its metric now; None where it reported none.
        before: Its metric before it was widened; None or NaN where it had none.
        goal: Which values are better.
        tolerance: By what share of `before` it may be worse; None: by any.
    """
    if value is None:
        return None
    if math.isnan(value):
        return "NaN" if before is None or math.isnan(before) else f"NaN after {before:.6g}"
    if tolerance is None or before is None or math.isnan(before):
        return None
    worse = value - before if goal == "minimize" else before - value
    if not worse > tolerance * abs(before):  # two infinities differ by NaN: one is no worse than the other
        return None
    return f"{value:.6g} after {before:.6g}, worse by more than the {tolerance:.0%} of scaling.tolerance"
