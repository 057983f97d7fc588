"""Sections that compare several studies, at the top of a page, and plots of the best value over cost."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import astuple
from itertools import pairwise
from pathlib import Path

from hpsearch.page.charts.chart import Chart
from hpsearch.page.charts.picture import Picture, save_pictures, series
from hpsearch.page.charts.scales import Linear, scale_of_good
from hpsearch.page.html import Section, SectionTable
from hpsearch.results.comparison import AXES, Axis, Comparison, Side
from hpsearch.tables.comparison import (
    amount_text,
    comparison_title,
    cost_rows,
    difference_time,
    difference_unknown,
    equal_cost_rows,
    pairing_lines,
    param_rows,
    setting_rows,
    side_lines,
)
from hpsearch.tables.wording import number

_MOST_STEPS = 1000
"""Largest number of steps of a curve, more than the picture's width in pixels."""

_HEIGHTS = 200
"""Number of horizontal positions whose values determine the vertical range. So a value counts by how long it lasts."""

_ACROSS: dict[Axis, str] = {
    "trials": "trials begun",
    "iterations": "iterations",
    "seconds": "seconds since the first trial began",
}


def beside(compared: Comparison) -> list[Section]:
    """Return the sections that compare studies: results and costs, the best value over cost, and the differences."""
    sides = [side.label for side in compared.sides]

    def table(head: str, rows: Sequence[tuple[str, Sequence[str]]]) -> SectionTable:
        return SectionTable((head, *sides), [(name, *cells) for name, cells in rows])

    equal = equal_cost_rows(compared)
    medians = ["Of each side's studies the median, with the quartiles."] if len(compared.runs) > len(sides) else []
    sections = [
        Section(
            "What each found",
            [f"All are to {comparison_title(compared)}.", *(line.strip() for line in side_lines(compared)), *medians],
            table=table("what", cost_rows(compared)),
        ),
        *([Section("Best at equal cost", medians, table=table("best after", equal))] if equal else []),
        *(Section(picture.title, [picture.description], picture) for picture in courses(compared).values()),
    ]
    if not compared.objective.several:
        params = table("best trial", param_rows(compared))
        is_marked = any(name.startswith("* ") for name, *_ in params.rows)
        sections.append(Section("Best trials", ["A * marks what differs."] if is_marked else [], table=params))
    if settings := setting_rows(compared):
        head = ("side", "key", f"in {sides[0]}", "in this side")
        sections.append(Section("How the sweeps differ", table=SectionTable(head, settings)))
    return [*sections, _differences(compared)]


def _differences(compared: Comparison) -> Section:
    """Return a table of each side's difference from the first side, with its confidence interval."""
    first = compared.sides[0].label
    title = f"Better than {first}"
    if len(compared.sides) < 2:
        return Section("Better or worse", ["One side: these studies differ in their seed alone."])
    has_p = any(difference.p_value is not None for difference in compared.differences)
    rows = [
        (
            difference.side,
            difference_time(difference),
            difference_unknown(difference) if difference.mean is None else f"{difference.mean:+.4g}",
            "" if difference.interval is None else f"{difference.interval[0]:+.4g} to {difference.interval[1]:+.4g}",
            str(difference.pairs or ""),
            *([] if not has_p else ["" if difference.p_value is None else f"{difference.p_value:.2g}"]),
        )
        for difference in compared.differences
    ]
    paragraphs = [f"By how much each side is better than {first}: above 0 where it is."]
    if any(difference.mean is not None and difference.interval is None for difference in compared.differences):
        paragraphs.append(
            "A side of one study says nothing of chance, so it has no interval: run both with more seeds."
        )
    paragraphs += [f"{line}." for line in pairing_lines(compared)]
    head = ("side", "when", "mean", "95 % interval", "seeds paired", *(["Wilcoxon p"] if has_p else []))
    return Section(title, paragraphs, table=SectionTable(head, rows))


def courses(compared: Comparison) -> dict[Axis, Picture]:
    """Plot each side's best value over each cost as a step curve, up to the cost that all of its runs reached."""
    objective = compared.objective
    title_of_axis = "hypervolume" if objective.several else objective.goals[0].name
    summary = f"Median of each side's best {title_of_axis}"
    summary += ", within its quartiles." if len(compared.runs) > len(compared.sides) else "."
    pictures: dict[Axis, Picture] = {}
    for axis in AXES:
        far = [min(float(getattr(run.course.end, axis)) for run in side.runs) for side in compared.sides]
        bests = [_bests(side, axis, end) for side, end in zip(compared.sides, far, strict=True)]
        up, beyond = scale_of_good(_heights(bests), not objective.several and objective.goals[0].goal == "minimize")
        across = Linear(0.0, max([*far, 1e-9]))
        ends = ", ".join(
            f"{side.label} {number(best[-1][1])} after {amount_text(axis, end)}"
            for side, best, end in zip(compared.sides, bests, far, strict=True)
            if best and not math.isnan(best[-1][1])
        )
        paragraphs = [summary, *([f"{ends}."] if ends else [])]
        if beyond:
            far_off = f"what was worse, as far as {number(beyond[-1])}, lies on its edge"
            paragraphs.append(f"The scale is that of the good values; {far_off}.")
        chart = Chart(f"Best over {axis}", " ".join(paragraphs), across, up, (_ACROSS[axis], f"best {title_of_axis}"))
        for index, (side, best) in enumerate(zip(compared.sides, bests, strict=True)):
            ink, dashed = series(index)
            chart.band(((x, low, high) for x, _, low, high in best), ink)
            chart.line([(x, median) for x, median, _, _ in best], ink, 2, dashed)
            chart.key(ink, side.label, "dashed" if dashed else "line")
        pictures[axis] = chart.picture
    return pictures


def save_courses(compared: Comparison, folder: Path) -> list[Path]:
    """Write the pictures of `courses` to a folder as SVG files, and return their paths.

    Raises:
        StorageError: The files can't be written.
    """
    pictures = {f"best-by-{axis}": picture for axis, picture in courses(compared).items()}
    return save_pictures(pictures, folder, " for plots")


def _bests(side: Side, axis: Axis, far: float) -> list[tuple[float, float, float, float]]:
    """Return (amount, median, lower quartile, upper quartile) at both ends of each step; NaN for missing values."""
    changes = {float(getattr(moment, axis)) for run in side.runs for moment in run.course.changes}
    marks = sorted(mark for mark in changes if mark <= far)
    apart, points = math.ceil(len(marks) / _MOST_STEPS) or 1, []
    for mark, end in pairwise([*marks[::apart], far]):
        spread = side.spread([run.at(axis, mark) for run in side.runs])
        median, low, high = (math.nan if value is None else value for value in astuple(spread))
        points += [(mark, median, low, high), (end, median, low, high)]
    return points


def _heights(bests: Sequence[Sequence[tuple[float, float, float, float]]]) -> list[float]:
    """Return the finite values of all sides at evenly spaced horizontal positions; [0.0] if there are none."""
    heights: list[float] = []
    for best in filter(None, bests):
        across = [x for x, *_ in best]
        for step in range(_HEIGHTS + 1):
            at = across[0] + (across[-1] - across[0]) * step / _HEIGHTS
            heights += filter(math.isfinite, best[bisect_right(across, at) - 1][1:])
    return heights or [0.0]
