"""Several studies beside each other, at the head of a page."""

from __future__ import annotations

from collections.abc import Sequence

from hpsearch.report.comparison import Comparison
from hpsearch.report.comparison_plots import courses
from hpsearch.report.comparison_tables import (
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
from hpsearch.report.page.section import Section, Table

__all__ = ["beside"]


def beside(compared: Comparison) -> list[Section]:
    """Compare what was found and what it cost, draw the best over the cost, and say what differs and by how much."""
    sides = [side.label for side in compared.sides]

    def table(head: str, rows: Sequence[tuple[str, Sequence[str]]]) -> Table:
        return Table((head, *sides), [(name, *cells) for name, cells in rows])

    equal = equal_cost_rows(compared)
    medians = ["Of each side's studies the median, with the quartiles."] if len(compared.runs) > len(sides) else []
    found = [
        Section(
            "What each found",
            [f"All are to {comparison_title(compared)}.", *(line.strip() for line in side_lines(compared)), *medians],
            table=table("what", cost_rows(compared)),
        ),
        *([Section("Best at equal cost", medians, table=table("best after", equal))] if equal else []),
        *(Section(picture.title, [picture.told], picture) for picture in courses(compared).values()),
    ]
    if not compared.objective.several:
        params = table("best trial", param_rows(compared))
        is_marked = any(name.startswith("* ") for name, *_ in params.rows)
        found.append(Section("Best trials", ["A * marks what differs."] if is_marked else [], table=params))
    if settings := setting_rows(compared):
        head = ("side", "key", f"in {sides[0]}", "in this side")
        found.append(Section("How the sweeps differ", table=Table(head, settings)))
    return [*found, _differences(compared)]


def _differences(compared: Comparison) -> Section:
    """Say by how much each side is better than the first one, and how sure that is."""
    first = compared.sides[0].label
    title = f"Better than {first}"
    if len(compared.sides) < 2:
        return Section("Better or worse", ["One side: these studies differ in their seed alone."])
    has_p = any(one.p_value is not None for one in compared.differences)
    rows = [
        (
            one.side,
            difference_time(one),
            difference_unknown(one) if one.mean is None else f"{one.mean:+.4g}",
            "" if one.interval is None else f"{one.interval[0]:+.4g} to {one.interval[1]:+.4g}",
            str(one.pairs or ""),
            *([] if not has_p else ["" if one.p_value is None else f"{one.p_value:.2g}"]),
        )
        for one in compared.differences
    ]
    words = [f"By how much each side is better than {first}: above 0 where it is."]
    if any(one.mean is not None and one.interval is None for one in compared.differences):
        words.append("A side of one study says nothing of chance, so it has no interval: run both with more seeds.")
    words += [f"{told}." for told in pairing_lines(compared)]
    head = ("side", "when", "mean", "95 % interval", "seeds paired", *(["Wilcoxon p"] if has_p else []))
    return Section(title, words, table=Table(head, rows))
