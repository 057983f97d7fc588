"""Tables of trials and of their segments: for terminals, as CSV and as JSON. Trials are also available as a DataFrame.

CSV and DataFrame have the columns `trial,state,iterations,value,params.<name>...,width`. Times are only included on
request, so that equal results give equal bytes. With several goals `values.<name>` replace `value`. Some columns are
only present if needed: `feasible` with outcome constraints; `code` if trials ran several versions of the code;
`asynchronous` if results of trials vary between reruns; `configuration`, `repeat`, `mean`, `std` and `n` with repeats;
`parent` and `inherited` with forks. A trial need not have every param. On request all reported metrics follow, as
`metrics.<name>`, and all notes, as `notes.<name>`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from hpsearch.objective import Metric, Objective
from hpsearch.results.segments import SegmentRow
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.formats import csv_text, frame_of, json_text, param_cells
from hpsearch.tables.layout import WHOLE, Column, Screen, one_line, table_text
from hpsearch.tables.wording import LONGEST_CELL, duration, numbers, shortened
from hpsearch.trial import Report, TrialRow, TrialState, Value

if TYPE_CHECKING:
    import pandas as pd

TRIALS_NAME = "trials.csv"
REPORTS_NAME = "reports.csv"

_SEE_ALL = "with --columns NAME,... or --format csv"
"""How to see columns of a table that don't fit."""

_AGAIN = {
    "halved": "runs again with half of the trials that were lost with it",
    "alone": "runs again with a worker for itself",
    "wider": "runs again on twice as many workers",
}
"""How a lost segment runs again, by `SegmentRow.then`."""

_ONE_VALUE = Objective(Metric("value"))
"""Objective if the metric's name is unknown."""


def rows_to_csv(
    rows: Sequence[TrialRow],
    names: Sequence[str],
    times: bool = False,
    metrics: bool = False,
    objective: Objective = _ONE_VALUE,
    notes: bool = False,
) -> str:
    r"""Return the trials as CSV with `\n` line ends.

    Floats have the shortest digits that read back as the same float, or are `nan`, `inf` or `-inf`; lists and mappings
    are JSON. None and missing params are empty.

    Args:
        rows: The trials, in order.
        names: The params, in order.
        times: Add the column `seconds`.
        metrics: Add the columns `metrics.<name>`.
        objective: The objective.
        notes: Add the columns `notes.<name>`.
    """
    columns = _columns(rows, names, times, metrics, objective, notes)
    return csv_text(columns, zip(*columns.values(), strict=True))


def value_columns(metrics: Sequence[str]) -> list[str]:
    """Return the value columns: `value` for one metric, `values.<name>` for several."""
    return [f"values.{name}" for name in metrics] if len(metrics) > 1 else ["value"]


def rows_to_json(
    rows: Sequence[TrialRow],
    names: Sequence[str],
    times: bool = False,
    objective: Objective = _ONE_VALUE,
    notes: bool = False,
) -> str:
    """Return the trials as a JSON array, one object per line, with params and metrics as nested objects.

    Args:
        rows: The trials, in order.
        names: The params, in order.
        times: Add the running time.
        objective: The objective. `value` is NaN for a trial that has no score because it reported NaN.
        notes: Add the notes, as a nested object.
    """
    entries = []
    codes, repeats = _code_cells(rows), repeat_columns(rows, objective)
    for index, row in enumerate(rows):
        entry: dict[str, Value] = {
            "trial": row.number,
            "state": str(row.state),
            "iterations": row.iterations,
            **_values_json(row, objective),
            "params": {name: row.params[name] for name in names if name in row.params},
            "width": row.width,
            "lanes": row.lanes,
            "metrics": dict(row.metrics),
        }
        entry |= {column: cells[index] for column, cells in repeats.items()}
        if row.parent is not None:
            entry["parent"] = row.parent
            entry["inherited"] = row.inherited
        if codes is not None:
            entry["code"] = codes[index]
        if row.asynchronous:
            entry["asynchronous"] = True
        if row.reverted:
            entry["reverted"] = row.reverted
        if row.failure is not None:
            entry["failure"] = {"kind": row.failure.kind, "message": row.failure.message}
        if times:
            entry["seconds"] = row.seconds
        if notes:
            entry["notes"] = dict(sorted(row.notes.items()))
        entries.append(entry)
    return json_text(entries)


def trials_dataframe(
    rows: Sequence[TrialRow],
    names: Sequence[str],
    times: bool = False,
    metrics: bool = False,
    objective: Objective = _ONE_VALUE,
    notes: bool = False,
) -> pd.DataFrame:
    """Return the trials as a DataFrame with the columns of the CSV. Missing values are NaN.

    A missing param is NaN or NA, depending on its column's type. A param that is None stays None. In a column of
    metrics or notes, missing values are None.
    """
    import pandas as pd

    frame = frame_of(_columns(rows, names, times, metrics, objective, notes, absent=pd.NA))
    values = dict.fromkeys(value_columns([goal.name for goal in objective.goals]), "float64")
    kinds = {**values, "trial": "int64", "iterations": "int64", "width": "int64"}
    return frame.astype(kinds | ({"feasible": "boolean"} if objective.constraints else {}))


def _columns(
    rows: Sequence[TrialRow],
    names: Sequence[str],
    times: bool,
    metrics: bool,
    objective: Objective,
    notes: bool,
    absent: Any = None,
) -> dict[str, list[Value]]:
    """Return the values of each column of the CSV; `absent` is the value of missing params."""
    columns: dict[str, list[Value]] = {
        "trial": [row.number for row in rows],
        "state": [str(row.state) for row in rows],
        "iterations": [row.iterations for row in rows],
        **{
            column: [row.values[index] if row.values else None for row in rows]
            for index, column in enumerate(value_columns([goal.name for goal in objective.goals]))
        },
        **({"feasible": [row.feasible if row.values else absent for row in rows]} if objective.constraints else {}),
        **{f"params.{name}": [row.params.get(name, absent) for row in rows] for name in names},
        "width": [row.width for row in rows],
    }
    if any(row.lanes != 1 for row in rows):
        columns["lanes"] = [row.lanes for row in rows]
    if (codes := _code_cells(rows)) is not None:
        columns["code"] = [*codes]
    if any(row.asynchronous for row in rows):
        columns["asynchronous"] = [row.asynchronous for row in rows]
    columns |= repeat_columns(rows, objective)
    if any(row.parent is not None for row in rows):
        columns["parent"] = [absent if row.parent is None else row.parent for row in rows]
        columns["inherited"] = [absent if row.inherited is None else row.inherited for row in rows]
    if times:
        columns["seconds"] = [row.seconds for row in rows]
    for name in metric_names(rows) if metrics else []:
        columns[f"metrics.{name}"] = [row.metrics.get(name) for row in rows]
    for name in note_names(rows) if notes else []:
        columns[f"notes.{name}"] = [row.notes.get(name) for row in rows]
    return columns


def repeat_columns(rows: Sequence[TrialRow], objective: Objective) -> dict[str, list[Value]]:
    """Return the columns of a study with repeats: `configuration, repeat, mean, std, n`; without repeats none.

    The last three are over the repeats of the trial's configuration that are complete with a value. With several goals
    `mean.<name>` and `std.<name>` replace `mean` and `std`. A sweep that asks for a quantile has it in place of the
    mean.
    """
    repeated = [row.repeated for row in rows if row.repeated is not None]
    if not repeated:
        return {}
    columns: dict[str, list[Value]] = {
        "configuration": [entry.configuration for entry in repeated],
        "repeat": [entry.repeat for entry in repeated],
    }
    for index, goal in enumerate(objective.goals):
        suffix = f".{goal.name}" if objective.several else ""
        columns[repeated[0].statistic + suffix] = [entry.values[index] if entry.n else None for entry in repeated]
        columns[f"std{suffix}"] = [entry.deviations[index] if entry.n else None for entry in repeated]
    return columns | {"n": [entry.n for entry in repeated]}


def repeat_cells(rows: Sequence[TrialRow], objective: Objective) -> list[Column]:
    """Return the columns of `repeat_columns` for a table."""
    return [
        Column(
            name,
            [str(cell) for cell in cells] if name in ("configuration", "repeat", "n") else numbers(cells),
            is_kept=True,
        )
        for name, cells in repeat_columns(rows, objective).items()
    ]


def _code_cells(rows: Sequence[TrialRow]) -> list[str] | None:
    """Return the code version of each trial, or several as `"1+2"`; None if all trials ran the same version."""
    if len({code for row in rows for code in row.code}) < 2:
        return None
    return ["+".join(map(str, sorted(row.code))) for row in rows]


def metric_names(rows: Iterable[TrialRow]) -> list[str]:
    """Return the metrics that these trials reported. They are sorted, so that the order of reports has no effect."""
    return sorted({name for row in rows for name in row.metrics})


def note_names(rows: Iterable[TrialRow]) -> list[str]:
    """Return the names of these trials' notes, sorted."""
    return sorted({name for row in rows for name in row.notes})


def _values_json(row: TrialRow, objective: Objective) -> dict[str, Value]:
    """Return a trial's values as JSON; NaN if the trial has no value because it reported NaN."""
    names = [goal.name for goal in objective.goals]
    failed = row.state is TrialState.FAILED
    nans = {name: math.nan for name in names if math.isnan(row.metrics.get(name, 0.0)) and not failed}
    values = dict(zip(names, row.values, strict=True)) if row.values else nans
    entry: dict[str, Value] = {"values": values} if objective.several else {"value": next(iter(values.values()), None)}
    return entry | ({"feasible": row.feasible if row.values else None} if objective.constraints else {})


def trials_csv(rows: Sequence[TrialRow], sweep: Sweep) -> str:
    """Return the table of all trials, by number, from which another sweep can warm-start."""
    names = sweep.parameters.columns(row.params for row in rows)
    # The constrained metrics are also needed to rank trials.
    return rows_to_csv(rows, names, metrics=bool(sweep.outcome_constraints), objective=sweep.objective)


def reports_csv(reports: Mapping[int, Iterable[Report]]) -> str:
    """Return reports as CSV, with the columns `trial,iteration,<metric>...,seconds`.

    Metrics are sorted by name, and empty if they weren't reported. Column names are unique: a metric with the name of
    another column has the column `metrics.<name>`.

    Args:
        reports: Reports of each trial that count, by iteration.
    """
    rows = [report for trial in sorted(reports) for report in reports[trial]]
    names = sorted({name for report in rows for name in report.metrics})
    return csv_text(
        ["trial", "iteration", *map(_column, names), "seconds"],
        ([report.trial, report.iteration, *map(report.metrics.get, names), report.seconds] for report in rows),
    )


def _column(metric: str) -> str:
    """Return a metric's column name. It is unique."""
    is_taken = metric in ("trial", "iteration", "seconds") or metric.startswith("metrics.")
    return f"metrics.{metric}" if is_taken else metric


def rows_to_table(
    rows: Sequence[TrialRow],
    names: Sequence[str],
    objective: Objective,
    times: bool = False,
    metrics: bool = False,
    worth: Mapping[int, float] | None = None,
    constants: Sequence[str] = (),
    screen: Screen = WHOLE,
    see: str = _SEE_ALL,
    notes: bool = False,
) -> str:
    """Return the trials as a table for a terminal.

    Messages of failed trials and reasons of reverted trials are cut to one line. The width is shown if a trial ran on
    more than one worker.

    Args:
        rows: The trials, in order.
        names: The params, in order.
        objective: The objective. Constrained metrics and violations have columns, too.
        times: Add the running time.
        metrics: Add the other reported metrics.
        worth: Weighted sums to show, by trial; None: no such column.
        constants: Params that the sweep doesn't vary. They are printed below the table.
        screen: The terminal or file for the output.
        see: How to see columns that don't fit.
        notes: Add the notes, each cut to one line.
    """
    columns = [
        Column("trial", [str(row.number) for row in rows], is_kept=True),
        Column("state", [str(row.state) for row in rows], is_text=True, is_kept=True),
        Column("iterations", [str(row.iterations) for row in rows]),
    ]
    for index, goal in enumerate(objective.goals):
        values = [row.values[index] if row.values else None for row in rows]
        columns.append(Column(goal.name, numbers(values), is_kept=True))
    for name in objective.names[len(objective.goals) :]:
        columns.append(_metric_column(name, rows))
    columns += repeat_cells(rows, objective)
    if worth is not None:
        columns.append(Column("worth", numbers([worth.get(row.number) for row in rows])))
    if objective.constraints:
        columns.append(Column("breaks", [", ".join(objective.broken(row.score)) for row in rows], is_text=True))
    for name in names:
        cells = param_cells(name, (row.params for row in rows))
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
    if (codes := _code_cells(rows)) is not None:
        columns.append(Column("code", codes, is_kept=True))
    if any(row.asynchronous for row in rows):
        columns.append(Column("asynchronous", ["yes" if row.asynchronous else "" for row in rows], is_text=True))
    if times:
        columns.append(Column("time", [duration(row.seconds) for row in rows]))
    for name in note_names(rows) if notes else []:
        cells = [shortened(one_line(row.notes.get(name, "")), LONGEST_CELL) for row in rows]
        columns.append(Column(one_line(name), cells, is_text=True, is_kept=True))
    if any(row.reverted for row in rows):
        cells = [shortened(row.reverted, LONGEST_CELL) for row in rows]
        columns.append(Column("taken back", cells, is_text=True))
    if any(row.failure is not None for row in rows):
        cells = [shortened(row.failure.message, LONGEST_CELL) if row.failure else "" for row in rows]
        columns.append(Column("failure", cells, is_text=True, is_kept=True))
    return table_text(columns, screen, see)


def _metric_column(name: str, rows: Sequence[TrialRow]) -> Column:
    return Column(name, numbers([row.metrics.get(name) for row in rows]))


def _forked_from(row: TrialRow) -> str:
    """Return a fork's parent and iteration, such as `"3 at 20"`; only the parent if it had no checkpoint."""
    if row.parent is None:
        return ""
    return str(row.parent) if row.inherited is None else f"{row.parent} at {row.inherited}"


def segments_to_csv(rows: Sequence[SegmentRow]) -> str:
    r"""Return the segments as CSV with `\n` line ends. None becomes an empty field."""
    columns = [field.name for field in fields(SegmentRow)]
    return csv_text(columns, [list(asdict(row).values()) for row in rows])


def segments_to_json(rows: Sequence[SegmentRow]) -> str:
    """Return the segments as a JSON array, one object per line."""
    return json_text(asdict(row) for row in rows)


def segments_to_table(rows: Sequence[SegmentRow], screen: Screen = WHOLE, see: str = "with --format csv") -> str:
    """Return the segments as a table for a terminal. `see` explains how to see columns that don't fit."""
    ended = [_end_text(row) for row in rows]
    return table_text(
        [
            Column("trial", [str(row.trial) for row in rows], is_kept=True),
            Column("attempt", [str(row.attempt) for row in rows], is_kept=True),
            Column("start", [str(row.start) for row in rows]),
            Column("end", ["" if row.end is None else str(row.end) for row in rows]),
            Column("width", [str(row.width) for row in rows]),
            *([Column("lanes", [str(row.lanes) for row in rows])] if any(row.lanes > 1 for row in rows) else []),
            Column("reason", [shortened(row.reason, LONGEST_CELL) for row in rows], is_text=True),
            Column("ended", [shortened(text, LONGEST_CELL) for text in ended], is_text=True, is_kept=True),
            Column("time", ["" if row.seconds is None else duration(row.seconds) for row in rows]),
        ],
        screen,
        see,
    )


def _end_text(row: SegmentRow) -> str:
    """Return how a segment ended, and how it runs again."""
    ended = f"{row.ended}, {_AGAIN[row.then]}" if row.then else row.ended
    return f"{ended}: {row.message}" if row.message else ended
