"""Trials from a table: a DataFrame, or a CSV or Parquet file of hpsearch or another program."""

from __future__ import annotations

import csv
import math
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpsearch.config.checks import InvalidKey, key_text, nearest
from hpsearch.config.import_paths import installing, is_installed
from hpsearch.errors import SweepError
from hpsearch.space import Space
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import Score, TrialState
from hpsearch.warm_start import cells
from hpsearch.warm_start.found import LeftOut, Source, SourceTrial

if TYPE_CHECKING:
    import pandas as pd

_PARAMS = "params."
_METRICS = "metrics."
_VALUES = "values."
_ITERATIONS = ("iteration", "iterations")
_OURS = ("trial", "state", "iterations", "value", "feasible", "width", "asynchronous", "seconds")
"""Columns of our own tables, besides params and metrics."""

_UNENDED = (TrialState.STOPPED, TrialState.WAITING, TrialState.RUNNING)


def from_csv(path: Path, sweep: Sweep) -> Source:
    """Read a CSV file.

    Raises:
        SweepError: The file isn't a CSV file in UTF-8 with a header, or has no column for the metric.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            head, *rows = csv.reader(file, strict=True)
    except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
        problem = getattr(error, "strerror", None) or error
        problem = "an empty file" if "not enough values" in str(error) else problem
        raise SweepError(f"--from {path}: expected a table in CSV, in UTF-8 and with a head, got: {problem}") from error
    for line, row in enumerate(rows, 2):
        if row and len(row) != len(head):
            raise SweepError(
                f"--from {path}: expected {len(head)} cells in each row, as in the head; row {line} has {len(row)}"
            )
    return _read(head, [row for row in rows if row], sweep, str(path), is_text=True)


def from_parquet(path: Path, sweep: Sweep) -> Source:
    """Read a Parquet file with the columns of a CSV file.

    Null is an empty cell, and NaN is a reported NaN. Text is parsed as in a CSV file, because hpsearch writes columns
    of mixed types as text.

    Raises:
        SweepError: The file isn't a Parquet file, or has no column for the metric; or pyarrow isn't installed.
    """
    if not is_installed("pyarrow"):
        raise SweepError(f"--from {path}: Parquet needs pyarrow, which isn't installed: {installing('parquet')}")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            table = file.read()
    except (OSError, pa.ArrowException) as error:
        raise SweepError(f"--from {path}: expected a table in Parquet, got: {error}") from error
    rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    texts = [["nan" if isinstance(cell, float) and math.isnan(cell) else cell for cell in row] for row in rows]
    return _read(table.column_names, texts, sweep, str(path), is_text=True)


def from_dataframe(frame: pd.DataFrame, sweep: Sweep) -> Source:
    """Read a DataFrame with the columns of a CSV file.

    Raises:
        SweepError: The DataFrame has no column for the metric.
    """
    rows = [list(row) for row in frame.itertuples(index=False, name=None)]
    return _read([str(column) for column in frame.columns], rows, sweep, dataframe_name(frame), is_text=False)


def dataframe_name(frame: pd.DataFrame) -> str:
    """Return a DataFrame's identity, from its content."""
    return f"a DataFrame of {len(frame)} rows ({zlib.crc32(frame.to_csv(index=False).encode()):08x})"


@dataclass(frozen=True)
class _Columns:
    """The columns of a table."""

    params: Mapping[str, int]
    """Column indices of params by flat name, including params that the sweep doesn't have."""
    metrics: Mapping[str, int]
    iteration: int | None
    trial: int | None
    state: int | None
    unread: Sequence[str]


def _read(head: Sequence[str], rows: Sequence[Sequence[Any]], sweep: Sweep, name: str, is_text: bool) -> Source:
    columns = _columns([column.strip() for column in head], sweep, name)
    by_trial: dict[object, list[SourceTrial]] = {}
    for index, row in enumerate(rows):
        trial = _trial(row, columns, sweep, is_text)
        by_trial.setdefault(_same_trial(row, index, columns, trial), []).append(trial)
    notes = [f"columns that weren't read: {', '.join(columns.unread)}"] if columns.unread else []
    return Source(name, [_joined(rows_of_one) for rows_of_one in by_trial.values()], notes)


def _columns(head: Sequence[str], sweep: Sweep, shown: str) -> _Columns:
    twice = sorted({column for column in head if head.count(column) > 1})
    if twice:
        raise SweepError(f"--from {shown}: expected each column once, but {', '.join(twice)} occurs twice")
    indices = {column: index for index, column in enumerate(head)}
    names, space = sweep.objective.names, sweep.parameters
    ours = any(column.startswith(_PARAMS) for column in head)
    if ours:
        params = {c.removeprefix(_PARAMS): index for c, index in indices.items() if c.startswith(_PARAMS)}
        reported = [c for c in head if c.startswith(_METRICS)]
        values = {name: _own_column(name, indices) for name in names}
        if len(names) == 1 and values[names[0]] is None and not reported and "value" in indices:
            values = {names[0]: "value"}
        metrics = [c.removeprefix(_METRICS) for c in reported]
    else:
        params = {name: index for name, index in indices.items() if space.find(name) is not None}
        values = {name: name if name in indices else None for name in names}
        metrics = [c for c in head if c not in params]
        both = next((name for name in names if name in params), None)
        if both is not None:
            raise SweepError(
                f"--from {shown}: expected columns for the metric and for the parameter {both!r}, which have one "
                f"name; call the parameter's {_PARAMS}{both}, and all others likewise"
            )
    lacking = next((name for name, column in values.items() if column is None), None)
    if lacking is not None:
        raise SweepError(
            f"--from {shown}: expected a column {lacking!r}, the sweep's metric, got none; {nearest(lacking, metrics)}"
        )
    param_columns = {} if ours else params
    iteration = next((c for c in _ITERATIONS if c in indices and c not in param_columns), None)
    trial = "trial" if "trial" in indices and "trial" not in param_columns else None
    state = "state" if "state" in indices and "state" not in param_columns else None
    read = {*values.values(), iteration, trial, state, *(_PARAMS + name if ours else name for name in params)}
    unread = [c for c in head if c not in read and not c.startswith((_METRICS, _VALUES)) and not (ours and c in _OURS)]
    return _Columns(
        params,
        {name: indices[column] for name, column in values.items() if column is not None},
        None if iteration is None else indices[iteration],
        None if trial is None else indices[trial],
        None if state is None else indices[state],
        unread,
    )


def _own_column(metric: str, indices: Mapping[str, int]) -> str | None:
    """Return a metric's column in a table that hpsearch wrote; None if there is none."""
    return next((c for c in (metric, f"{_VALUES}{metric}", f"{_METRICS}{metric}") if c in indices), None)


def _trial(row: Sequence[Any], columns: _Columns, sweep: Sweep, is_text: bool) -> SourceTrial:
    """Return the trial of a row."""
    state = None if columns.state is None else row[columns.state]
    if str(state) == TrialState.FAILED:
        return _left_out("failed")
    try:
        params = _params(row, columns, sweep, is_text)
        read = {name: cells.metric(row[index], name) for name, index in columns.metrics.items()}
        score = sweep.objective.reported({name: value for name, value in read.items() if value is not None})
        if score is None:
            return SourceTrial(params, {})
        at = None if columns.iteration is None else cells.iteration(row[columns.iteration], "iteration")
    except InvalidKey as error:
        return _left_out(f"have a cell in {key_text(error.key)} that can't be read", error.problem)
    return SourceTrial(params, {at: score}, at, str(state) not in _UNENDED)


def _left_out(reason: str, example: str = "") -> SourceTrial:
    return SourceTrial({}, {}, left_out=LeftOut(reason, example))


def _params(row: Sequence[Any], columns: _Columns, sweep: Sweep, is_text: bool) -> dict[str, object]:
    space = sweep.parameters
    always = space.columns([]) if space.conditional else space.names
    params: dict[str, object] = {}
    empty: dict[str, object] = {}
    for name, index in columns.params.items():
        parameter = space.find(name)
        distribution = None if parameter is None else parameter.distribution
        is_empty = cells.is_empty(row[index])
        if is_empty and (distribution is None or not cells.allows_empty(distribution)):
            continue  # the parameter is inactive
        cell = row[index] if distribution is None else cells.param(row[index], distribution, name, is_text)
        (empty if is_empty and name not in always else params)[name] = cell
    known = {name: value for name, value in params.items() if space.find(name) is not None}
    for name, cell in empty.items():
        if _applies(name, cell, known, space):
            params[name] = cell
    return params


def _applies(name: str, cell: object, params: Mapping[str, object], space: Space) -> bool:
    """Return whether an empty cell is a value, rather than an inactive parameter."""
    with suppress(InvalidKey):
        return name in space.check({**params, name: cell}, partial=True)
    return False


def _same_trial(row: Sequence[Any], index: int, columns: _Columns, trial: SourceTrial) -> object:
    """Return the key of a row's trial: its number, or its params if it has none."""
    if columns.trial is not None:
        return str(row[columns.trial])
    if columns.iteration is None or trial.left_out or trial.reached is None:
        return index
    return repr(sorted(trial.params.items()))


def _joined(rows: Sequence[SourceTrial]) -> SourceTrial:
    """Merge the rows of one trial."""
    first, last = rows[0], rows[-1]
    if len(rows) == 1:
        return first
    out = next((row for row in rows if row.left_out), None)
    if out is not None:
        return out
    if any(repr(row.params) != repr(first.params) for row in rows):
        return _left_out("have a number in the column trial that others have")
    values: dict[int | None, Score] = {}
    for row in rows:
        if values.keys() & row.values.keys():
            return _left_out("have an iteration twice", "must stand there once for each number in a column trial")
        values |= row.values
    if None in values:
        return _left_out("have no iteration in some of their rows")
    reached = [row.reached for row in rows if row.reached is not None]
    return replace(last, values=values, reached=max(reached, default=None))
