"""Tables of trials and of their segments: for terminals, as CSV and as JSON. Trials are also available as a DataFrame.

CSV and DataFrame have the columns `trial,state,iterations,value,params.<name>...,width`. Times are only included on
request, so that equal results give equal bytes. With several goals `values.<name>` replace `value`. Some columns are
only present if needed: `feasible` with outcome constraints; `code` if trials ran several versions of the code;
`asynchronous` if results of trials vary between reruns; `configuration`, `repeat`, `mean`, `std` and `n` with repeats;
`parent` and `inherited` with forks. A trial need not have every param. On request all reported metrics follow, as
`metrics.<name>`, and all notes, as `notes.<name>`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

from hpsearch.objective import Metric, Objective
from hpsearch.results.segments import SegmentRow
from hpsearch.space.expressions import ABSENT
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.formats import csv_text, frame_of, json_text, param_cells
from hpsearch.tables.layout import WHOLE, Column, Screen, one_line, table_text
from hpsearch.tables.trial_columns import (
    OWN,
    SHOWN,
    TrialColumn,
    breaks_column,
    goal_columns,
    in_cell,
    item_column,
    metric_names,
    note_names,
    repeat_columns,
    trial_columns,
    value_columns,
)
from hpsearch.tables.wording import duration
from hpsearch.trial import Report, TrialRow, Value

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

_NO_VALUE = TrialColumn("value", lambda _: ABSENT)
"""The column of values of a sweep that names no metric."""

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
    later = [*repeat_columns(rows, objective), *([SHOWN["code"]] if _ran_several_codes(rows) else [])]
    for row in rows:
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
        entry |= {column.head: _read(column, row, None) for column in later}
        if row.parent is not None:
            entry |= {"parent": row.parent, "inherited": row.inherited}
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
    """Return the values of each column of the CSV; `absent` is the value of missing params, parents and feasibility."""
    known = trial_columns(rows, names, objective) | {"code": SHOWN["code"]}
    chosen = ["trial", "state", "iterations", *value_columns([goal.name for goal in objective.goals])]
    chosen += ["feasible"] if objective.constraints else []
    chosen += [*(f"params.{name}" for name in names), "width"]
    chosen += ["lanes"] if any(row.lanes != 1 for row in rows) else []
    chosen += ["code"] if _ran_several_codes(rows) else []
    chosen += ["asynchronous"] if _needed(["asynchronous"], rows) else []
    chosen += [column.name for column in repeat_columns(rows, objective)]
    chosen += ["parent", "inherited"] if _needed(["parent"], rows) else []
    chosen += ["seconds"] if times else []
    chosen += [f"metrics.{name}" for name in metric_names(rows) if metrics]
    chosen += [f"notes.{name}" for name in note_names(rows) if notes]
    values = {}
    for name in chosen:
        missing = absent if name.startswith("params.") or name in ("feasible", "parent", "inherited") else None
        values[name] = [_read(known.get(name, _NO_VALUE), row, missing) for row in rows]
    return values


def _read(column: TrialColumn, row: TrialRow, missing: Value) -> Value:
    value = column.read(row)
    return missing if value is ABSENT else value


def _needed(names: Sequence[str], rows: Sequence[TrialRow]) -> list[TrialColumn]:
    """Return those of the columns for people in which any trial has something."""
    return [SHOWN[name] for name in names if any(SHOWN[name].read(row) is not ABSENT for row in rows)]


def _ran_several_codes(rows: Sequence[TrialRow]) -> bool:
    return len({code for row in rows for code in row.code}) > 1


def _values_json(row: TrialRow, objective: Objective) -> dict[str, Value]:
    """Return a trial's values as JSON; NaN if the trial has no value because it reported NaN."""
    read = {goal.head: goal.reported or goal.read for goal in goal_columns(objective)}
    values = {name: value for name, found in read.items() if (value := found(row)) is not ABSENT}
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
    first = [OWN["trial"], OWN["state"], OWN["iterations"], *goal_columns(objective)]
    first += [item_column("metrics", name) for name in objective.names[len(objective.goals) :]]
    first += repeat_columns(rows, objective)
    if worth is not None:
        first.append(TrialColumn("worth", lambda row: worth.get(row.number, ABSENT)))
    if objective.constraints:
        first.append(breaks_column(objective))
    params = [
        Column(name, param_cells(name, (row.params for row in rows)), is_text=True, is_constant=name in constants)
        for name in names
    ]
    reported = metric_names(rows) if metrics or not objective.goals else []
    last = [item_column("metrics", name) for name in reported if name not in objective.names]
    last += _needed(["parent"], rows)
    last += [OWN[name] for name in ("width", "lanes") if any(getattr(row, name) != 1 for row in rows)]
    last += [SHOWN["code"]] if _ran_several_codes(rows) else []
    last += _needed(["asynchronous"], rows)
    last += [SHOWN["time"]] if times else []
    last += [_note_column(name) for name in note_names(rows) if notes]
    last += _needed(["taken back", "failure"], rows)
    columns = [column.column(rows) for column in first] + params + [column.column(rows) for column in last]
    return table_text(columns, screen, see)


def _note_column(name: str) -> TrialColumn:
    note = item_column("notes", name)
    return replace(note, head=one_line(name), show=lambda text: in_cell(one_line(text)), is_text=True, is_kept=True)


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
            Column("reason", [in_cell(row.reason) for row in rows], is_text=True),
            Column("ended", [in_cell(text) for text in ended], is_text=True, is_kept=True),
            Column("time", ["" if row.seconds is None else duration(row.seconds) for row in rows]),
        ],
        screen,
        see,
    )


def _end_text(row: SegmentRow) -> str:
    """Return how a segment ended, and how it runs again."""
    ended = f"{row.ended}, {_AGAIN[row.then]}" if row.then else row.ended
    return f"{ended}: {row.message}" if row.message else ended
