"""The table of trials as people read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpsearch.objective import Objective
from hpsearch.space.expressions import ABSENT
from hpsearch.tables.formats import param_cell
from hpsearch.tables.layout import WHOLE, Column, Screen, table_text
from hpsearch.tables.selection import Field
from hpsearch.tables.trials import code_cells, metric_names
from hpsearch.tables.wording import LONGEST_CELL, duration, numbers, shortened
from hpsearch.trial import TrialRow

__all__ = ["SEE_ALL", "fields_to_table", "rows_to_table"]

SEE_ALL = "with --columns NAME,... or --format csv"
"""How to see columns of a table that don't fit."""


def rows_to_table(
    rows: Sequence[TrialRow],
    names: Sequence[str],
    objective: Objective,
    times: bool = False,
    metrics: bool = False,
    worth: Mapping[int, float] | None = None,
    constants: Sequence[str] = (),
    screen: Screen = WHOLE,
    see: str = SEE_ALL,
) -> str:
    """Return the trials for a terminal, with messages of failed trials and reasons of reverted ones in one line.

    The width is shown if a trial ran on more than one worker.

    Args:
        rows: The trials, in order.
        names: The params, in order.
        objective: The objective. Constrained metrics and violations have columns, too.
        times: Add the running time.
        metrics: Add the other reported metrics.
        worth: Weighted sums by trial, to show.
        constants: Params that the sweep doesn't vary, which are printed below the table.
        screen: The terminal or file.
        see: How to see columns that don't fit.
    """
    columns = [
        Column("trial", [str(row.number) for row in rows], is_kept=True),
        Column("state", [str(row.state) for row in rows], is_text=True, is_kept=True),
        Column("iterations", [str(row.iterations) for row in rows]),
    ]
    for place, goal in enumerate(objective.goals):
        values = [row.values[place] if row.values else None for row in rows]
        columns.append(Column(goal.name, numbers(values), is_kept=True))
    for name in objective.names[len(objective.goals) :]:
        columns.append(_metric_column(name, rows))
    if worth is not None:
        columns.append(Column("worth", numbers([worth.get(row.number) for row in rows])))
    if objective.constraints:
        columns.append(Column("breaks", [", ".join(objective.broken(row.score)) for row in rows], is_text=True))
    for name in names:
        cells = [param_cell(row.params[name]) if name in row.params else "" for row in rows]
        columns.append(Column(name, cells, is_text=True, is_constant=name in constants))
    for name in metric_names(rows) if metrics or not objective.goals else []:
        if name not in objective.names:
            columns.append(_metric_column(name, rows))
    if any(row.parent is not None for row in rows):
        columns.append(Column("parent", [_forked_from(row) for row in rows]))
    if any(row.width != 1 for row in rows):
        columns.append(Column("width", [str(row.width) for row in rows]))
    if any(row.lanes != 1 for row in rows):
        columns.append(Column("lanes", [str(row.lanes) for row in rows]))
    if (codes := code_cells(rows)) is not None:
        columns.append(Column("code", codes, is_kept=True))
    if any(row.asynchronous for row in rows):
        columns.append(Column("asynchronous", ["yes" if row.asynchronous else "" for row in rows], is_text=True))
    if times:
        columns.append(Column("time", [duration(row.seconds) for row in rows]))
    if any(row.reverted for row in rows):
        cells = [shortened(row.reverted, LONGEST_CELL) for row in rows]
        columns.append(Column("taken back", cells, is_text=True))
    if any(row.failure is not None for row in rows):
        cells = [shortened(row.failure.message, LONGEST_CELL) if row.failure else "" for row in rows]
        columns.append(Column("failure", cells, is_text=True, is_kept=True))
    return table_text(columns, screen, see)


def fields_to_table(rows: Sequence[TrialRow], fields: Sequence[Field], screen: Screen = WHOLE) -> str:
    """Return the requested fields of the trials for a terminal."""
    columns = []
    for field in fields:
        values = [field.read(row) for row in rows]
        if all(value is ABSENT or isinstance(value, float) for value in values):
            columns.append(Column(field.head, numbers([None if value is ABSENT else value for value in values])))
        else:
            is_text = not all(value is ABSENT or isinstance(value, int) for value in values)
            cells = ["" if value is ABSENT else param_cell(value) for value in values]
            columns.append(Column(field.head, cells, is_text=is_text))
    return table_text(columns, screen, "with --format csv, or in a wider terminal")


def _metric_column(name: str, rows: Sequence[TrialRow]) -> Column:
    return Column(name, numbers([row.metrics.get(name) for row in rows]))


def _forked_from(row: TrialRow) -> str:
    """Return what a trial was forked from: `"3 at 20"`; without the iteration where nothing was taken over."""
    if row.parent is None:
        return ""
    return str(row.parent) if row.inherited is None else f"{row.parent} at {row.inherited}"
