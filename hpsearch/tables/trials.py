"""The table of trials for programs: as CSV and JSON, and as a DataFrame.

CSV and DataFrame have the columns `trial,state,iterations,value,params.<name>...,width`, and equal rows give equal
bytes: no times unless they are asked for. Where several metrics decide `values.<name>` stand in place of `value`; where
outcomes are constrained `feasible` follows. Where trials ran several versions of the code, `code` follows; where some
give other numbers when they run once more, `asynchronous`; and where trials were forked, `parent` and `inherited`. A
trial need not have every param. Behind them stand all that was reported, `metrics.<name>`, where asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpsearch.objective import Metric, Objective
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.formats import csv_text, frame_of, json_text
from hpsearch.trial import Report, TrialRow, TrialState, Value

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "REPORTS_NAME",
    "TRIALS_NAME",
    "code_cells",
    "metric_names",
    "reports_csv",
    "rows_to_csv",
    "rows_to_json",
    "trials_csv",
    "trials_dataframe",
    "value_columns",
]

TRIALS_NAME = "trials.csv"
REPORTS_NAME = "reports.csv"

_ONE_VALUE = Objective(Metric("value"))
"""What decides, where nobody says what it is called."""


def rows_to_csv(
    rows: Sequence[TrialRow],
    names: Sequence[str],
    times: bool = False,
    metrics: bool = False,
    objective: Objective = _ONE_VALUE,
) -> str:
    r"""Give the trials as CSV with `\n` line ends.

    Floats have the digits that give the same float again, or are `nan`, `inf` or `-inf`; lists and mappings are JSON.
    None is empty, and so is a param that the trial doesn't have.

    Args:
        rows: The trials, in the order of the lines.
        names: The params, in the order of the columns.
        times: Add the column `seconds`.
        metrics: Add the columns `metrics.<name>`.
        objective: What decides.
    """
    columns = _columns(rows, names, times, metrics, objective)
    return csv_text(columns, zip(*columns.values(), strict=True))


def value_columns(metrics: Sequence[str]) -> list[str]:
    """Name the columns of the metrics that decide: `value` where it is one, else `values.<name>`."""
    return [f"values.{name}" for name in metrics] if len(metrics) > 1 else ["value"]


def rows_to_json(
    rows: Sequence[TrialRow], names: Sequence[str], times: bool = False, objective: Objective = _ONE_VALUE
) -> str:
    """Give the trials as a JSON array of objects, params and metrics as an object in each, one trial per line.

    Args:
        rows: The trials, in the order of the lines.
        names: The params, in the order of each object.
        times: Add the running time.
        objective: What decides. Where that is NaN, and so no value, `value` says so.
    """
    entries = []
    codes = code_cells(rows)
    for place, row in enumerate(rows):
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
        if row.parent is not None:
            entry["parent"] = row.parent
            entry["inherited"] = row.inherited
        if codes is not None:
            entry["code"] = codes[place]
        if row.asynchronous:
            entry["asynchronous"] = True
        if row.reverted:
            entry["reverted"] = row.reverted
        if row.failure is not None:
            entry["failure"] = {"kind": row.failure.kind, "message": row.failure.message}
        if times:
            entry["seconds"] = row.seconds
        entries.append(entry)
    return json_text(entries)


def trials_dataframe(
    rows: Sequence[TrialRow],
    names: Sequence[str],
    times: bool = False,
    metrics: bool = False,
    objective: Objective = _ONE_VALUE,
) -> pd.DataFrame:
    """Give the trials as a DataFrame with the columns of the CSV; NaN where there is no value.

    A param that a trial doesn't have is NaN or NA, as its column's type has it; one that is None stays None. In a
    column of metrics None stands where nothing was reported, if that is so of any trial.
    """
    import pandas as pd

    frame = frame_of(_columns(rows, names, times, metrics, objective, absent=pd.NA))
    values = dict.fromkeys(value_columns([goal.name for goal in objective.goals]), "float64")
    kinds = {**values, "trial": "int64", "iterations": "int64", "width": "int64"}
    return frame.astype(kinds | ({"feasible": "boolean"} if objective.constraints else {}))


def _columns(
    rows: Sequence[TrialRow],
    names: Sequence[str],
    times: bool,
    metrics: bool,
    objective: Objective,
    absent: Any = None,
) -> dict[str, list[Value]]:
    """Give the values of each column of the CSV; `absent` is that of what the trial doesn't have."""
    columns: dict[str, list[Value]] = {
        "trial": [row.number for row in rows],
        "state": [str(row.state) for row in rows],
        "iterations": [row.iterations for row in rows],
        **{
            column: [row.values[place] if row.values else None for row in rows]
            for place, column in enumerate(value_columns([goal.name for goal in objective.goals]))
        },
        **({"feasible": [row.feasible if row.values else absent for row in rows]} if objective.constraints else {}),
        **{f"params.{name}": [row.params.get(name, absent) for row in rows] for name in names},
        "width": [row.width for row in rows],
    }
    if any(row.lanes != 1 for row in rows):
        columns["lanes"] = [row.lanes for row in rows]
    if (codes := code_cells(rows)) is not None:
        columns["code"] = [*codes]
    if any(row.asynchronous for row in rows):
        columns["asynchronous"] = [row.asynchronous for row in rows]
    if any(row.parent is not None for row in rows):
        columns["parent"] = [absent if row.parent is None else row.parent for row in rows]
        columns["inherited"] = [absent if row.inherited is None else row.inherited for row in rows]
    if times:
        columns["seconds"] = [row.seconds for row in rows]
    for name in metric_names(rows) if metrics else []:
        columns[f"metrics.{name}"] = [row.metrics.get(name) for row in rows]
    return columns


def code_cells(rows: Sequence[TrialRow]) -> list[str] | None:
    """Return the version of the code that each trial ran, or `"1+2"`; None if all ran the same one."""
    if len({code for row in rows for code in row.code}) < 2:
        return None
    return ["+".join(map(str, sorted(row.code))) for row in rows]


def metric_names(rows: Iterable[TrialRow]) -> list[str]:
    """Give the metrics that these trials reported, sorted: who reported first mustn't change the table."""
    return sorted({name for row in rows for name in row.metrics})


def _values_json(row: TrialRow, objective: Objective) -> dict[str, Value]:
    """Give what decides; NaN for a trial that has no value because it reported NaN."""
    names = [goal.name for goal in objective.goals]
    failed = row.state is TrialState.FAILED
    nans = {name: math.nan for name in names if math.isnan(row.metrics.get(name, 0.0)) and not failed}
    values = dict(zip(names, row.values, strict=True)) if row.values else nans
    told: dict[str, Value] = {"values": values} if objective.several else {"value": next(iter(values.values()), None)}
    return told | ({"feasible": row.feasible if row.values else None} if objective.constraints else {})


def trials_csv(rows: Sequence[TrialRow], sweep: Sweep) -> str:
    """Give the table of all trials, by number, as another sweep can begin with it."""
    names = sweep.parameters.columns(row.params for row in rows)
    # Whoever reads it back judges by what is constrained, too.
    return rows_to_csv(rows, names, metrics=bool(sweep.outcome_constraints), objective=sweep.objective)


def reports_csv(reports: Mapping[int, Iterable[Report]]) -> str:
    """Give `trial,iteration,<metric>...,seconds`: metrics sorted by name and empty where they weren't reported.

    A metric called as one of the other three has the column `metrics.<name>`: readers keep one column of a name.

    Args:
        reports: Of each trial those that count, by iteration.
    """
    rows = [report for trial in sorted(reports) for report in reports[trial]]
    names = sorted({name for report in rows for name in report.metrics})
    return csv_text(
        ["trial", "iteration", *map(_column, names), "seconds"],
        ([report.trial, report.iteration, *map(report.metrics.get, names), report.seconds] for report in rows),
    )


def _column(metric: str) -> str:
    """Name a metric's column; no two metrics have the same."""
    taken = metric in ("trial", "iteration", "seconds") or metric.startswith("metrics.")
    return f"metrics.{metric}" if taken else metric
