"""A scale on which good values can be told apart, however bad the others are."""

from __future__ import annotations

from collections.abc import Sequence

from hpsearch.charts import FAR, Linear, Log, scale_of

__all__ = ["scale_of_good"]

_BEYOND = 4.0
"""Values farther from the best than this many times what three quarters of them span are left to an axis' edge."""

_WORTH = 1.5
"""So many times as long the axis must become by them; else they are on it, too."""


def scale_of_good(values: Sequence[float], less_is_better: bool) -> tuple[Linear | Log, Sequence[float]]:
    """Give a scale, and the values that lie beyond it, the worst last.

    A few that are bad would else press all others into one line.

    Args:
        values: Finite ones, one at least.
        less_is_better: Whether the least is the best.
    """
    ordered = sorted(values, reverse=not less_is_better)
    span = abs(ordered[(len(ordered) - 1) * 3 // 4] - ordered[0])
    near = [value for value in ordered if abs(value - ordered[0]) <= _BEYOND * span]
    if abs(ordered[-1] - ordered[0]) <= _WORTH * _BEYOND * span or not span:
        near = ordered
    kept = [value for value in near if abs(value) < FAR]
    log = less_is_better and bool(kept) and kept[0] > 0 and kept[-1] > 20 * kept[0]
    return scale_of(kept, log), [value for value in near if abs(value) >= FAR] + ordered[len(near) :]
