"""Read recorded curves from the columns of a CSV or Parquet file with one line per iteration."""

from __future__ import annotations

import warnings
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpsearch.config.checks import InvalidKey, KeyPath, nearest, plain
from hpsearch.config.import_paths import installing, is_installed
from hpsearch.simulation.description import Description, Quantity, check_task
from hpsearch.simulation.lookup import identity
from hpsearch.simulation.table import Floats, Recorded, each_iteration

if TYPE_CHECKING:
    import pandas as pd


def recorded_columns(path: Path, described: Description, task: str) -> Recorded:
    """Read a file. Lines with equal params, in any order, become one row.

    Raises:
        InvalidKey: The file can't be read, or doesn't match the description.
    """
    _check(described)
    lines = _lines(path)
    for key in ("tasks", "iteration", "repetition", "failure"):
        name = getattr(described, key)
        if name is not None:
            _column(lines, name, (key,))
    lines = _of_task(lines, described, task)
    params = {name: _scaled(lines, quantity) for name, quantity in described.parameters.items()}
    rows = lines.groupby(
        [_hashable(column) for column in params.values()], sort=False, dropna=False, observed=True
    ).ngroup()
    repetitions = _repetitions(lines, rows, described)
    iterations = _iterations(lines, described)
    shape = int(rows.max()) + 1, int(repetitions.max()) + 1, int(iterations.max()) + 1
    index = rows.to_numpy(), repetitions.to_numpy(), iterations.to_numpy()
    if len(set(zip(*(level.tolist() for level in index), strict=True))) < len(lines):
        raise InvalidKey(
            (),
            "must have one line for each row, repetition and iteration, but some stand there twice",
            "name the column that tells them apart: iteration or repetition",
        )
    recorded = np.zeros(shape, dtype=bool)
    recorded[index] = True
    if not (recorded[:, :, 1:] <= recorded[:, :, :-1]).all():
        raise InvalidKey(("iteration",), "must count from 1 without a gap in each row")
    firsts = np.unique(index[0], return_index=True)[1]
    return Recorded(
        {name: column.iloc[firsts].tolist() for name, column in params.items()},
        {name: _filled(shape, index, _numbers(lines, q)) for name, q in described.metrics.items()},
        _seconds(lines, described, shape, index),
        () if described.failure is None else _failures(lines[described.failure], shape, index),
    )


def _check(described: Description) -> None:
    """Check that the description has no axes, which only arrays have."""
    quantities = [*described.parameters.values(), *described.metrics.values()]
    for quantity in [*quantities, described.seconds]:
        for name in ("column", "names", "axes"):
            if isinstance(quantity, Quantity) and getattr(quantity, name) is not None:
                raise InvalidKey((*quantity.key, name), "is for the arrays of an .npz archive, and can't stand here")
    if described.axes is not None:
        raise InvalidKey(("axes",), "are for the arrays of an .npz archive, and can't stand here")


def _lines(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        if path.suffix == ".csv":
            # Otherwise pandas would silently shift the columns of lines that are longer than the first, and read the
            # same value as a number in one part of a long file and as text in another.
            with warnings.catch_warnings():
                warnings.simplefilter("error", pd.errors.ParserWarning)
                lines = pd.read_csv(path, index_col=False, low_memory=False)
        else:
            if not is_installed("pyarrow"):
                problem = "must be a file that can be read here, but Parquet needs pyarrow, which isn't installed"
                raise InvalidKey(("table",), problem, installing("parquet"))
            lines = pd.read_parquet(path)
    except (OSError, ValueError, NotImplementedError, pd.errors.ParserWarning) as error:
        raise InvalidKey(("table",), f"must be a readable {path.suffix} file: {error}") from None
    if lines.empty:
        raise InvalidKey(("table",), "must hold lines, got none")
    return lines


def _column(lines: pd.DataFrame, name: str, key: KeyPath) -> pd.Series:
    if name not in lines.columns:
        raise InvalidKey(key, f"must name a column of the file, got {name!r}", nearest(name, map(str, lines.columns)))
    return lines[name]


def _of_task(lines: pd.DataFrame, described: Description, task: str) -> pd.DataFrame:
    labels = None if described.tasks is None else lines[described.tasks].astype(str)
    check_task(task, None if labels is None else list(labels.unique()))
    return lines if labels is None else lines[labels == task]


def _scaled(lines: pd.DataFrame, quantity: Quantity) -> pd.Series:
    """Return a parameter's scaled column; missing cells are null."""
    import pandas as pd

    column = _column(lines, quantity.name, quantity.key)
    if quantity.scale != 1.0:
        column = pd.Series(_numbers(lines, quantity), lines.index)
    if column.dtype != object and not column.isna().any():
        return column
    missing = [value is pd.NA or value is pd.NaT or (isinstance(value, float) and isnan(value)) for value in column]
    values = [None if none else plain(value, quantity.key) for value, none in zip(column, missing, strict=True)]
    return pd.Series(values, lines.index, dtype=object)


def _hashable(column: pd.Series) -> Any:
    """Return hashable keys to group lines by, also for mixed values and lists."""
    return column.map(identity) if column.dtype == object else column


def _numbers(lines: pd.DataFrame, quantity: Quantity) -> Floats:
    column = _column(lines, quantity.name, quantity.key)
    try:
        return column.to_numpy(dtype=np.float64) * quantity.scale
    except (TypeError, ValueError) as error:
        raise InvalidKey(quantity.key, f"must be a column of numbers: {error}") from None


def _repetitions(lines: pd.DataFrame, rows: pd.Series, described: Description) -> pd.Series:
    """Number the repetitions of each row from 0, without gaps."""
    if described.repetition is None:
        return rows * 0
    numbers = lines[described.repetition].groupby(rows).rank("dense")
    if numbers.isna().any():
        raise InvalidKey(("repetition",), "must have a value in each line")
    return numbers.astype(int) - 1


def _iterations(lines: pd.DataFrame, described: Description) -> pd.Series:
    import pandas as pd

    if described.iteration is None:
        return lines.iloc[:, 0].map(lambda _: 0)
    numbers = _numbers(lines, Quantity(("iteration",), described.iteration))
    if not (numbers % 1 == 0).all() or numbers.min() < 1:
        raise InvalidKey(("iteration",), f"must count from 1 in whole numbers, got {numbers.min():g} and more")
    if numbers.max() > len(lines):
        raise InvalidKey(("iteration",), f"must count from 1 without a gap in each row, got {numbers.max():g}")
    return pd.Series(numbers.astype(int) - 1, lines.index)


def _failures(column: pd.Series, shape: tuple[int, int, int], index: tuple[np.ndarray, ...]) -> list[list[str]]:
    """Return each run's error message, from any of its lines; if there are several, that of the last iteration."""
    out = [[""] * shape[1] for _ in range(shape[0])]
    is_failed = column.notna().to_numpy()
    messages = zip(*(level[is_failed].tolist() for level in reversed(index)), column[is_failed], strict=True)
    for _, repetition, row, message in sorted(messages, key=lambda row: row[0]):
        if not isinstance(message, str):
            raise InvalidKey(("failure",), f"must be a column of texts, empty where nothing failed, got {message!r}")
        out[row][repetition] = message or out[row][repetition]
    return out


def _filled(shape: tuple[int, int, int], index: tuple[np.ndarray, ...], values: Floats) -> Floats:
    out = np.full(shape, np.nan)
    out[index] = values
    return out


def _seconds(
    lines: pd.DataFrame, described: Description, shape: tuple[int, int, int], index: tuple[np.ndarray, ...]
) -> Floats:
    quantity = described.seconds
    if not isinstance(quantity, Quantity):
        return _filled(shape, index, np.full(len(lines), quantity))
    values = _numbers(lines, quantity)
    if np.isnan(values).any():
        raise InvalidKey(quantity.key, "must have a number in each line")
    return each_iteration(_filled(shape, index, values), quantity.cumulative)
