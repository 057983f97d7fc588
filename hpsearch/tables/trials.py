"""The table of trials for programs: as CSV and JSON, and as a DataFrame.

CSV and DataFrame have the columns `trial,state,iterations,value,params.<name>...,width`. Equal rows give equal bytes,
so there are no times unless requested. With several goals `values.<name>` replace `value`. Constraints on outcomes add
`feasible`; several versions of the code add `code`; trials that give other numbers in a rerun add `asynchronous`; forks
add `parent` and `inherited`. A trial need not have every param. On request all reported metrics follow, as
`metrics.<name>`.
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
"""The objective if its name is unknown."""


def rows_to_csv(
    rows: Sequence[TrialRow],
    names: Sequence[str],
    times: bool = False,
    metrics: bool = False,
    objective: Objective = _ONE_VALUE,
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
    """
    columns = _columns(rows, names, times, metrics, objective)
    return csv_text(columns, zip(*columns.values(), strict=True))


def value_columns(metrics: Sequence[str]) -> list[str]:
    """Name the columns of the metrics that decide: `value` where it is one, else `values.<name>`."""
    return [f"values.{name}" for name in metrics] if len(metrics) > 1 else ["value"]


def rows_to_json(
    rows: Sequence[TrialRow], names: Sequence[str], times: bool = False, objective: Objective = _ONE_VALUE
) -> str:
    """Return the trials as a JSON array, one object per line, with params and metrics as nested objects.

    Args:
        rows: The trials, in order.
        names: The params, in order.
        times: Add the running time.
        objective: The objective. If it is NaN, and so no score, `value` is NaN.
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
    """Return the trials as a DataFrame with the columns of the CSV; missing values are NaN.

    A missing param is NaN or NA, depending on its column's type; a param that is None stays None. In a column of
    metrics missing values are None.
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
    """Return the values of each column of the CSV; `absent` is the value of missing params."""
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
    """Return the metrics that these trials reported, sorted: who reported first mustn't change the table."""
    return sorted({name for row in rows for name in row.metrics})


def _values_json(row: TrialRow, objective: Objective) -> dict[str, Value]:
    """Return what decides; NaN for a trial that has no value because it reported NaN."""
    names = [goal.name for goal in objective.goals]
    failed = row.state is TrialState.FAILED
    nans = {name: math.nan for name in names if math.isnan(row.metrics.get(name, 0.0)) and not failed}
    values = dict(zip(names, row.values, strict=True)) if row.values else nans
    told: dict[str, Value] = {"values": values} if objective.several else {"value": next(iter(values.values()), None)}
    return told | ({"feasible": row.feasible if row.values else None} if objective.constraints else {})


def trials_csv(rows: Sequence[TrialRow], sweep: Sweep) -> str:
    """Return the table of all trials, by number, as another sweep can begin with it."""
    names = sweep.parameters.columns(row.params for row in rows)
    # Readers need the constrained metrics, too, to rank trials.
    return rows_to_csv(rows, names, metrics=bool(sweep.outcome_constraints), objective=sweep.objective)


def reports_csv(reports: Mapping[int, Iterable[Report]]) -> str:
    """Return `trial,iteration,<metric>...,seconds` as CSV: metrics sorted by name, and empty without a report.

    A metric with the name of another column has the column `metrics.<name>`, as readers need unique names.

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
    """Name a metric's column; no two metrics have the same."""
    taken = metric in ("trial", "iteration", "seconds") or metric.startswith("metrics.")
    return f"metrics.{metric}" if taken else metric
