"""Whether a trial went wrong because it was given more workers than before."""

from __future__ import annotations

from hpsearch.objective import Objective, is_valid

__all__ = ["diverged"]


def diverged(value: float | None, before: float | None, objective: Objective, tolerance: float | None) -> str | None:
    """Say in words how a trial diverged, None where it didn't.

    Args:
        value: Its metric now; None where it reported none.
        before: Its metric before it was widened; None or NaN where it had none.
        objective: Says which values are worse.
        tolerance: By what share of `before` it may be worse; None: by any.
    """
    if value is None:
        return None
    if not is_valid(value):
        return f"NaN after {before:.6g}" if is_valid(before) else "NaN"
    if tolerance is None or not is_valid(before):
        return None
    if not objective.loss(before, value) > tolerance * abs(before):  # the loss between like infinities is NaN
        return None
    return f"{value:.6g} after {before:.6g}, worse by more than the {tolerance:.0%} of scaling.tolerance"
