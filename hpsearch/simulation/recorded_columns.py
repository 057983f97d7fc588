"""Recorded curves from the columns of a CSV or Parquet file, with a line for each iteration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hpsearch.checks import InvalidKey, KeyPath, nearest
from hpsearch.simulation.description import Description, Quantity
from hpsearch.simulation.table import Floats, Recorded, each_iteration

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["recorded_columns"]


def recorded_columns(path: Path, described: Description, task: str) -> Recorded:
    """Read a file. Lines of equal params are one row; in which order they stand doesn't matter.

    Raises:
        InvalidKey: It can't be read, or doesn't hold what the description says.
    """
    lines = _lines(path)
    for key in ("tasks", "iteration", "repetition", "failure"):
        name = getattr(described, key)
        if name is not None:
            _column(lines, name, (key,))
    lines = _of_task(lines, described, task)
    params = {name: _scaled(lines, quantity) for name, quantity in described.parameters.items()}
    rows = lines.groupby([column.rename(name) for name, column in params.items()], sort=False, dropna=False).ngroup()
    repetitions = _repetitions(lines, rows, described)
    iterations = _iterations(lines, described)
    shape = int(rows.max()) + 1, int(repetitions.max()) + 1, int(iterations.max()) + 1
    place = rows.to_numpy(), repetitions.to_numpy(), iterations.to_numpy()
    if len(set(zip(*(part.tolist() for part in place), strict=True))) < len(lines):
        raise InvalidKey(
            (),
            "must have one line for each row, repetition and iteration, but some stand there twice",
            "name the column that tells them apart: iteration or repetition",
        )
    recorded = np.zeros(shape, dtype=bool)
    recorded[place] = True
    if not (recorded[:, :, 1:] <= recorded[:, :, :-1]).all():
        raise InvalidKey(("iteration",), "must count from 1 without a gap in each row")
    firsts = np.unique(place[0], return_index=True)[1]
    return Recorded(
        {name: [None if value != value else value for value in column.iloc[firsts]] for name, column in params.items()},
        {name: _filled(shape, place, _numbers(lines, q)) for name, q in described.metrics.items()},
        _seconds(lines, described, shape, place),
        () if described.failure is None else lines[described.failure].iloc[firsts].fillna("").astype(str).tolist(),
    )


def _lines(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        lines = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise InvalidKey(("table",), f"must be a readable {path.suffix} file: {error}") from None
    if lines.empty:
        raise InvalidKey(("table",), "must hold lines, got none")
    return lines


def _column(lines: pd.DataFrame, name: str, key: KeyPath) -> pd.Series:
    if name not in lines.columns:
        raise InvalidKey(key, f"must name a column of the file, got {name!r}", nearest(name, map(str, lines.columns)))
    return lines[name]


def _of_task(lines: pd.DataFrame, described: Description, task: str) -> pd.DataFrame:
    if described.tasks is None:
        if task:
            raise InvalidKey((), f"holds one task, so nothing can stand behind #, got {task!r}")
        return lines
    labels = lines[described.tasks].astype(str)
    if not (labels == task).any():
        known = list(labels.unique())
        raise InvalidKey(
            ("tasks",), f"holds {len(known)} tasks, of which #{task or '...'} is none", nearest(task, known)
        )
    return lines[labels == task]


def _scaled(lines: pd.DataFrame, quantity: Quantity) -> pd.Series:
    column = _column(lines, quantity.name, quantity.key)
    return column if quantity.scale == 1.0 else column * quantity.scale


def _numbers(lines: pd.DataFrame, quantity: Quantity) -> Floats:
    column = _column(lines, quantity.name, quantity.key)
    try:
        return column.to_numpy(dtype=np.float64) * quantity.scale
    except (TypeError, ValueError) as error:
        raise InvalidKey(quantity.key, f"must be a column of numbers: {error}") from None


def _repetitions(lines: pd.DataFrame, rows: pd.Series, described: Description) -> pd.Series:
    """Number the repetitions of each row from 0, without a gap."""
    if described.repetition is None:
        return rows * 0
    return lines[described.repetition].groupby(rows).rank("dense").astype(int) - 1


def _iterations(lines: pd.DataFrame, described: Description) -> pd.Series:
    if described.iteration is None:
        return lines.iloc[:, 0].map(lambda _: 0)
    numbers = _numbers(lines, Quantity(("iteration",), described.iteration))
    if not (numbers % 1 == 0).all() or numbers.min() < 1:
        raise InvalidKey(("iteration",), f"must count from 1 in whole numbers, got {numbers.min():g} and more")
    return lines[described.iteration].astype(int) - 1


def _filled(shape: tuple[int, int, int], place: tuple[np.ndarray, ...], values: Floats) -> Floats:
    out = np.full(shape, np.nan)
    out[place] = values
    return out


def _seconds(
    lines: pd.DataFrame, described: Description, shape: tuple[int, int, int], place: tuple[np.ndarray, ...]
) -> Floats:
    quantity = described.seconds
    if not isinstance(quantity, Quantity):
        return _filled(shape, place, np.full(len(lines), quantity))
    values = _numbers(lines, quantity)
    if np.isnan(values).any():
        raise InvalidKey(quantity.key, "must have a number in each line")
    return each_iteration(_filled(shape, place, values), quantity.cumulative)
