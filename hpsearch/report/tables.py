"""The table of trials: as CSV and JSON for programs, for a terminal, and as a DataFrame.

CSV and DataFrame have the columns `trial,state,iterations,value,params.<name>...,width`, and equal rows give equal
bytes: no times unless they are asked for. A trial need not have every param. Behind them stand all that was reported,
`metrics.<name>`, where asked for.

JSON has no numbers for what isn't finite: there they are the strings `"NaN"`, `"Infinity"` and `"-Infinity"`.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpsearch.report.wording import duration, number, shortened
from hpsearch.trial import TrialRow, TrialState, Value

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

__all__ = [
    "STATE_STYLES",
    "column_names",
    "csv_field",
    "csv_text",
    "json_text",
    "metric_names",
    "rows_to_csv",
    "rows_to_json",
    "rows_to_table",
    "strict_json",
    "table_text",
    "trials_dataframe",
]

STATE_STYLES = {
    TrialState.WAITING: "yellow",
    TrialState.RUNNING: "cyan",
    TrialState.COMPLETE: "green",
    TrialState.STOPPED: "dim",
    TrialState.FAILED: "bold red",
}
"""Rich's style of each state."""

_LONGEST = 100
"""Letters of a reason or message that a cell shows."""


def column_names(names: Sequence[str], times: bool = False, metrics: Sequence[str] = ()) -> list[str]:
    """Give the columns of the table of trials with these params and metrics."""
    fixed = ["trial", "state", "iterations", "value", *(f"params.{name}" for name in names), "width"]
    return [*fixed, *(["seconds"] if times else []), *(f"metrics.{name}" for name in metrics)]


def metric_names(rows: Iterable[TrialRow]) -> list[str]:
    """Give the metrics that these trials reported, sorted: who reported first mustn't change the table."""
    return sorted({name for row in rows for name in row.metrics})


def rows_to_csv(rows: Sequence[TrialRow], names: Sequence[str], times: bool = False, metrics: bool = False) -> str:
    r"""Give the trials as CSV with `\n` line ends.

    Floats have the digits that give the same float again, or are `nan`, `inf` or `-inf`; lists and mappings are JSON.
    None is empty, and so is a param that the trial doesn't have.

    Args:
        rows: The trials, in the order of the lines.
        names: The params, in the order of the columns.
        times: Add the column `seconds`.
        metrics: Add the columns `metrics.<name>`.
    """
    reported = metric_names(rows) if metrics else []
    return csv_text(column_names(names, times, reported), [_values(row, names, times, reported) for row in rows])


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Value]]) -> str:
    r"""Give rows below their columns' names as CSV with `\n` line ends."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    # A carriage return inside a value ends the line for most readers unless it is quoted; whether csv quotes
    # it by itself depends on Python's version.
    careful = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(columns)
    for row in rows:
        fields = [csv_field(value) for value in row]
        chosen = careful if any("\r" in field for field in fields) else writer
        chosen.writerow(fields)
    return text.getvalue()


def rows_to_json(rows: Sequence[TrialRow], names: Sequence[str], times: bool = False, metric: str = "") -> str:
    """Give the trials as a JSON array of objects, params and metrics as an object in each, one trial per line.

    Args:
        rows: The trials, in the order of the lines.
        names: The params, in the order of each object.
        times: Add the running time.
        metric: Where it is NaN, and so no value, `value` says so.
    """
    entries = []
    for row in rows:
        entry: dict[str, Value] = {
            "trial": row.number,
            "state": str(row.state),
            "iterations": row.iterations,
            "value": _not_nan(row.value) if row.value is not None else _nan_of(row, metric),
            "params": {name: row.params[name] for name in names if name in row.params},
            "width": row.width,
            "metrics": dict(row.metrics),
        }
        if row.parent is not None:
            entry["parent"] = row.parent
        if row.reverted:
            entry["reverted"] = row.reverted
        if row.failure is not None:
            entry["failure"] = {"kind": row.failure.kind, "message": row.failure.message}
        if times:
            entry["seconds"] = row.seconds
        entries.append(entry)
    return json_text(entries)


def json_text(entries: Iterable[Mapping[str, Value]]) -> str:
    """Give objects as a JSON array, each on a line."""
    lines = [json.dumps(strict_json(entry), ensure_ascii=False, allow_nan=False) for entry in entries]
    return "[\n" + ",\n".join(lines) + "\n]" if lines else "[]"


def strict_json(value: Value) -> Value:
    """Give a value with the strings `"NaN"`, `"Infinity"` and `"-Infinity"` for floats that aren't finite."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {name: strict_json(entry) for name, entry in value.items()}
    return [strict_json(entry) for entry in value] if isinstance(value, list | tuple) else value


def rows_to_table(
    rows: Sequence[TrialRow],
    names: Sequence[str],
    metric: str = "value",
    times: bool = False,
    metrics: bool = False,
) -> Table:
    """Give the trials for a terminal; a failed one shows its message in one line, one that was taken back the reason.

    The width is shown where some trial ran on more than one worker.

    Args:
        rows: The trials, in the order of the lines.
        names: The params, in the order of the columns.
        metric: Heads the column of values.
        times: Add the running time.
        metrics: Add what else was reported.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("trial", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("iterations", justify="right", no_wrap=True)
    table.add_column(Text(metric), justify="right", no_wrap=True)
    for name in names:
        table.add_column(Text(name))
    reported = [name for name in metric_names(rows) if name != metric] if metrics else []
    for name in reported:
        table.add_column(Text(name), justify="right", no_wrap=True)
    wide = any(row.width != 1 for row in rows)
    if wide:
        table.add_column("width", justify="right", no_wrap=True)
    if times:
        table.add_column("time", justify="right", no_wrap=True)
    reverted = any(row.reverted for row in rows)
    if reverted:
        table.add_column("taken back")
    failures = any(row.failure is not None for row in rows)
    if failures:
        table.add_column("failure")
    for row in rows:
        cells = [
            Text(str(row.number)),
            Text(str(row.state), style=STATE_STYLES[row.state]),
            Text(str(row.iterations)),
            Text("" if _not_nan(row.value) is None else f"{row.value:.6g}"),
            *(Text(_cell(row.params[name]) if name in row.params else "") for name in names),
            *(Text(f"{row.metrics[name]:.6g}" if name in row.metrics else "") for name in reported),
        ]
        if wide:
            cells.append(Text(str(row.width)))
        if times:
            cells.append(Text(duration(row.seconds)))
        if reverted:
            cells.append(Text(shortened(row.reverted, _LONGEST), style="yellow"))
        if failures:
            cells.append(Text(shortened(row.failure.message, _LONGEST) if row.failure else "", style="red"))
        table.add_row(*cells)
    return table


def table_text(table: Table) -> str:
    """Give a table as plain text, as wide as it needs to be: for a pipe or a file."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=10_000, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def trials_dataframe(
    rows: Sequence[TrialRow], names: Sequence[str], times: bool = False, metrics: bool = False
) -> pd.DataFrame:
    """Give the trials as a DataFrame with the columns of the CSV; NaN where there is no value.

    A param that a trial doesn't have is NaN or NA, as its column's type has it; one that is None stays None. In a
    column of metrics None stands where nothing was reported, if that is so of any trial.
    """
    import pandas as pd

    reported = metric_names(rows) if metrics else []
    columns = column_names(names, times, reported)
    values = [_values(row, names, times, reported, absent=pd.NA) for row in rows]
    frame = pd.DataFrame({name: _series([row[i] for row in values]) for i, name in enumerate(columns)})
    return frame.astype({"value": "float64", "trial": "int64", "iterations": "int64", "width": "int64"})


def _values(
    row: TrialRow, names: Sequence[str], times: bool, metrics: Sequence[str], absent: Any = None
) -> list[Value]:
    fixed = [row.number, str(row.state), row.iterations, _not_nan(row.value)]
    params = (row.params.get(name, absent) for name in names)
    return [*fixed, *params, row.width, *([row.seconds] if times else []), *(row.metrics.get(n) for n in metrics)]


def _not_nan(value: float | None) -> float | None:
    """Give None for NaN as well."""
    return None if value is None or math.isnan(value) else value


def _nan_of(row: TrialRow, metric: str) -> float | None:
    """Give NaN for a trial that has no value because it reported NaN."""
    reported = row.metrics.get(metric)
    told = reported is not None and math.isnan(reported) and row.state is not TrialState.FAILED
    return reported if told else None


def csv_field(value: Value) -> str:
    """Put a param's value, or another cell, as the CSV holds it."""
    if value is None:
        return ""
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else str(value)


def _cell(value: Value) -> str:
    if value is None:
        return "null"
    return number(value) if isinstance(value, float) else csv_field(value)


def _series(values: list[Any]) -> pd.Series[Any]:
    """Keep every value as it is, where pandas would turn [1, None] into floats."""
    import pandas as pd

    present = [value for value in values if value is not pd.NA]
    kinds = {type(value) for value in present}
    if len(kinds) != 1 or not kinds <= {bool, int, float, str}:
        return pd.Series(values, dtype=object)
    if len(present) == len(values):
        return pd.Series(values)
    dtype = {bool: "boolean", int: "Int64", float: "float64"}.get(kinds.pop())
    return pd.Series([None if value is pd.NA else value for value in values], dtype=dtype)
