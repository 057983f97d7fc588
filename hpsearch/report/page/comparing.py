"""Several studies beside each other, at the head of a page."""

from __future__ import annotations

import math

from hpsearch.charts import Chart, Linear, Picture, scale_of
from hpsearch.charts.picture import SERIES
from hpsearch.report.comparison import AXES, Axis, Comparison, Side
from hpsearch.report.comparison_tables import comparison_text
from hpsearch.report.page.section import Section

__all__ = ["beside", "courses"]

_POINTS = 100
_ACROSS: dict[Axis, str] = {"trials": "trials begun", "iterations": "iterations", "seconds": "seconds"}


def beside(compared: Comparison) -> list[Section]:
    """Give the comparison in words, and draw the best over trials, iterations and seconds."""
    drawn = [Section(picture.title, [picture.told], picture) for picture in courses(compared).values()]
    return [Section("Side by side", code=comparison_text(compared)), *drawn]


def courses(compared: Comparison) -> dict[Axis, Picture]:
    """Draw each side's best over what it had cost, as far as all of its runs went."""
    objective = compared.objective
    what = "hypervolume" if objective.several else objective.goals[0].name
    told = f"Median of each side's best {what}"
    told += ", within its quartiles." if len(compared.runs) > len(compared.sides) else "."
    pictures: dict[Axis, Picture] = {}
    for axis in AXES:
        far = [min(float(getattr(run.course.end, axis)) for run in side.runs) for side in compared.sides]
        bands = [_band(side, axis, end) for side, end in zip(compared.sides, far, strict=True)]
        up = scale_of(y for band in bands for _, *known in band for y in known)
        across = Linear(0.0, max([*far, 1e-9]))
        chart = Chart(f"Best over {axis}", told, across, up, (_ACROSS[axis], f"best {what}"))
        for place, (side, band) in enumerate(zip(compared.sides, bands, strict=True)):
            ink = SERIES[place % len(SERIES)]
            chart.band([(x, low, high) for x, _, low, high in band], ink)
            chart.line([(x, middle) for x, middle, _, _ in band], ink, 2, dashed=place % 2 == 1)
            chart.key(ink, side.label, dashed=place % 2 == 1)
        pictures[axis] = chart.picture
    return pictures


def _band(side: Side, axis: Axis, far: float) -> list[tuple[float, float, float, float]]:
    """Give (where, median, worse quartile, better one); NaN where there is none."""
    found = []
    for place in range(1, _POINTS + 1):
        amount = far * place / _POINTS
        spread = side.spread([run.at(axis, amount) for run in side.runs])
        known = (math.nan if value is None else value for value in (spread.median, spread.low, spread.high))
        found.append((amount, *known))
    return [(x, middle, low, high) for x, middle, low, high in found]
