"""What is drawn in which colour, alike in all pictures of a study."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from hpsearch.charts.picture import SERIES, Ink
from hpsearch.schedulers.base import RungView

__all__ = ["rung_inks"]


def rung_inks(rungs: Iterable[RungView]) -> Mapping[int | None, Ink]:
    """Give a colour for each iteration that rungs end at, in order, None behind them for one that has no end.

    Of more rungs than there are colours, neighbours share one.
    """
    untils = sorted({rung.until for rung in rungs}, key=lambda until: math.inf if until is None else until)
    each = max(len(untils), len(SERIES))
    return {until: SERIES[place * len(SERIES) // each] for place, until in enumerate(untils)}
