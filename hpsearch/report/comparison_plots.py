"""Studies beside each other, drawn: the best over what it had cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from itertools import pairwise

from hpsearch.charts import Chart, Linear, Picture
from hpsearch.charts.picture import series
from hpsearch.report.comparison import AXES, Axis, Comparison, Side
from hpsearch.report.comparison_tables import amount_told
from hpsearch.report.good_scale import scale_of_good
from hpsearch.report.wording import number

__all__ = ["courses"]

_MOST_STEPS = 1000
"""More than a picture has pixels across."""

_HEIGHTS = 200
"""How many places across say which values there are: those that hold for long count more than those that don't."""

_ACROSS: dict[Axis, str] = {
    "trials": "trials begun",
    "iterations": "iterations",
    "seconds": "seconds since the first trial began",
}


def courses(compared: Comparison) -> dict[Axis, Picture]:
    """Draw each side's best over what it had cost, in steps, as far as all of its runs went."""
    objective = compared.objective
    what = "hypervolume" if objective.several else objective.goals[0].name
    told = f"Median of each side's best {what}"
    told += ", within its quartiles." if len(compared.runs) > len(compared.sides) else "."
    pictures: dict[Axis, Picture] = {}
    for axis in AXES:
        far = [min(float(getattr(run.course.end, axis)) for run in side.runs) for side in compared.sides]
        bests = [_bests(side, axis, end) for side, end in zip(compared.sides, far, strict=True)]
        up, beyond = scale_of_good(_heights(bests), not objective.several and objective.goals[0].goal == "minimize")
        across = Linear(0.0, max([*far, 1e-9]))
        ends = ", ".join(
            f"{side.label} {number(best[-1][1])} after {amount_told(axis, end)}"
            for side, best, end in zip(compared.sides, bests, far, strict=True)
            if best and not math.isnan(best[-1][1])
        )
        words = [told, *([f"{ends}."] if ends else [])]
        if beyond:
            far_off = f"what was worse, as far as {number(beyond[-1])}, lies on its edge"
            words.append(f"The scale is that of the good values; {far_off}.")
        chart = Chart(f"Best over {axis}", " ".join(words), across, up, (_ACROSS[axis], f"best {what}"))
        for place, (side, best) in enumerate(zip(compared.sides, bests, strict=True)):
            ink, dashed = series(place)
            for part in _within(best):
                chart.band(part, ink)
            chart.line([(x, median) for x, median, _, _ in best], ink, 2, dashed)
            chart.key(ink, side.label, "dashed" if dashed else "line")
        pictures[axis] = chart.picture
    return pictures


def _bests(side: Side, axis: Axis, far: float) -> list[tuple[float, float, float, float]]:
    """Give (amount, median, lower quartile, upper one) at both ends of each step; NaN where there is none."""
    changes = {float(getattr(moment, axis)) for run in side.runs for moment in run.course.changes}
    marks = sorted(mark for mark in changes if mark <= far)
    apart, found = math.ceil(len(marks) / _MOST_STEPS) or 1, []
    for mark, end in pairwise([*marks[::apart], far]):
        spread = side.spread([run.at(axis, mark) for run in side.runs])
        median, low, high = (math.nan if value is None else value for value in astuple(spread))
        found += [(mark, median, low, high), (end, median, low, high)]
    return found


def _heights(bests: Sequence[Sequence[tuple[float, float, float, float]]]) -> list[float]:
    """Give the finite values of all sides at even places across; of none 0."""
    found = []
    for best in bests:
        first, last = (best[0][0], best[-1][0]) if best else (0.0, 0.0)
        place = 0
        for step in range(_HEIGHTS + 1):
            at = first + (last - first) * step / _HEIGHTS
            while place + 1 < len(best) and best[place + 1][0] <= at:
                place += 1
            found += [value for value in best[place][1:] if math.isfinite(value)] if best else []
    return found or [0.0]


def _within(best: Sequence[tuple[float, float, float, float]]) -> Iterator[list[tuple[float, float, float]]]:
    """Give (amount, lower quartile, upper one) in parts that have both all along."""
    part: list[tuple[float, float, float]] = []
    for x, _, low, high in best:
        if math.isfinite(low) and math.isfinite(high):
            part.append((x, low, high))
        elif part:
            yield part
            part = []
    if part:
        yield part
