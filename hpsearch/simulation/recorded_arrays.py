"""Read recorded curves from the arrays of an NPZ archive."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpsearch.config.checks import InvalidKey, KeyPath, nearest
from hpsearch.simulation.description import AXES, Axis, Description, Quantity, check_task
from hpsearch.simulation.table import Floats, Recorded, each_iteration

Arrays = Mapping[str, NDArray[Any]]

_USUAL: Mapping[int, tuple[Axis, ...]] = {
    1: ("row",),
    2: ("row", "iteration"),
    3: ("row", "repetition", "iteration"),
}
"""Default names of axes by the number of axes, without the task axis."""


def recorded_arrays(path: Path, described: Description, task: str) -> Recorded:
    """Read an archive.

    Raises:
        InvalidKey: The archive can't be read, or doesn't match the description.
    """
    for key in ("iteration", "repetition"):
        if getattr(described, key) is not None:
            raise InvalidKey((key,), "is for the lines of a .csv or .parquet file: arrays have axes")
    arrays = _load(path)
    sizes: dict[Axis, int] = {}
    task_index = _task(arrays, described, task, sizes)
    columns = {name: _column(arrays, quantity, task_index, sizes) for name, quantity in described.parameters.items()}
    sizes["row"] = len(next(iter(columns.values())))
    metrics = {name: _values(arrays, q, described, task_index, sizes) for name, q in described.metrics.items()}
    if isinstance(described.seconds, Quantity):
        seconds = _values(arrays, described.seconds, described, task_index, sizes)
        seconds = each_iteration(seconds, described.seconds.cumulative)
    else:
        seconds = np.full((1, 1, 1), described.seconds)
    shape = sizes["row"], sizes.get("repetition", 1), sizes.get("iteration", 1)
    return Recorded(
        columns,
        {name: np.broadcast_to(values, shape) for name, values in metrics.items()},
        np.broadcast_to(seconds, shape),
        () if described.failure is None else _failures(arrays, described.failure, task_index, sizes),
    )


def _load(path: Path) -> Arrays:
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise ValueError("it holds a single array")
            return dict(archive.items())
    except (OSError, ValueError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidKey(("table",), f"must be an archive of arrays: {error}") from None


def _array(arrays: Arrays, name: str, key: KeyPath) -> NDArray[Any]:
    if name not in arrays:
        raise InvalidKey(key, f"must name an array of the archive, got {name!r}", nearest(name, arrays))
    return arrays[name]


def _labels(arrays: Arrays, name: str, key: KeyPath) -> list[str]:
    labels = _plain(_array(arrays, name, key))
    if not isinstance(labels, list) or len(set(map(str, labels))) < len(labels):
        raise InvalidKey(key, f"must be a list of names, each once, but {name} isn't one")
    return [str(label) for label in labels]


def _plain(array: NDArray[Any]) -> Any:
    """Return an array's values. Bytes are decoded to text, since other programs write text as bytes."""
    return (np.strings.decode(array, "utf-8", "replace") if array.dtype.kind == "S" else array).tolist()


def _task(arrays: Arrays, described: Description, task: str, sizes: dict[Axis, int]) -> int | None:
    """Return the index of a task on the task axis, and record the axis's size; None if there is no task axis."""
    labels = None if described.tasks is None else _labels(arrays, described.tasks, ("tasks",))
    check_task(task, labels)
    if labels is None:
        return None
    sizes["task"] = len(labels)
    return labels.index(task)


def _failures(arrays: Arrays, name: str, task: int | None, sizes: Mapping[Axis, int]) -> list[list[str]]:
    """Return the error messages as [rows][repetitions]. The array may lack the repetition and task axes."""
    values = _array(arrays, name, ("failure",))
    if task is not None and values.ndim > 1:
        values = values[min(task, len(values) - 1)]
    rows, repetitions = sizes["row"], sizes.get("repetition", 1)
    if values.dtype.kind not in "US" or values.shape not in ((rows,), (rows, repetitions)):
        raise InvalidKey(
            ("failure",),
            f"must be texts for each row, or row and repetition, empty where nothing failed, but {name} is of "
            f"{values.dtype}, {list(values.shape)}",
        )
    messages: list[list[str]] = _plain(np.broadcast_to(values.reshape(rows, -1), (rows, repetitions)))
    return messages


def _column(arrays: Arrays, quantity: Quantity, task: int | None, sizes: Mapping[Axis, int]) -> list[Any]:
    """Return a parameter's value for each row. If each task has its own rows, the rows of `task` are returned."""
    values = _array(arrays, quantity.name, quantity.key)
    column = quantity.column
    if task is not None and values.ndim == (2 if column is None else 3) and len(values) == sizes["task"]:
        values = values[task]
    if values.ndim == 2 and column is not None:
        if quantity.names is not None:
            names = _labels(arrays, quantity.names, (*quantity.key, "names"))
            if column not in names:
                raise InvalidKey(
                    (*quantity.key, "column"), f"isn't one of {quantity.names}", nearest(str(column), names)
                )
            column = names.index(str(column))
        if not isinstance(column, int) or not 0 <= column < values.shape[1]:
            raise InvalidKey(
                (*quantity.key, "column"),
                f"must be below {values.shape[1]}, or names must say which it is, got {column!r}",
            )
        values = values[:, column]
    elif column is not None or quantity.names is not None:
        raise InvalidKey(
            (*quantity.key, "names" if column is None else "column"),
            f"is for an array of several columns, but {quantity.name} is {list(values.shape)}",
        )
    if values.ndim != 1:
        raise InvalidKey(
            quantity.key,
            f"must have one value for each row, but {quantity.name} is {list(values.shape)}: name a column",
        )
    if quantity.scale != 1.0:
        _check_numbers(values, quantity)
        values = values * quantity.scale
    return [None if isinstance(value, float) and value != value else value for value in _plain(values)]


def _check_numbers(values: NDArray[Any], quantity: Quantity) -> None:
    if values.dtype.kind not in "iuf":
        raise InvalidKey(quantity.key, f"must hold numbers, but {quantity.name} is of {values.dtype}")


def _values(
    arrays: Arrays, quantity: Quantity, described: Description, task: int | None, sizes: dict[Axis, int]
) -> Floats:
    """Return a quantity as [rows, repetitions, iterations], with size 1 for missing axes.

    `sizes` contains the known sizes of axes, and is updated.

    Raises:
        InvalidKey: The quantity isn't numeric, or the size of an axis differs.
    """
    values = _array(arrays, quantity.name, quantity.key)
    with_task: tuple[Axis, ...] = () if task is None else ("task",)
    axes = quantity.axes or described.axes or (*with_task, *_USUAL.get(values.ndim - len(with_task), ()))
    if len(axes) != values.ndim or ("task" in axes) != (task is not None):
        raise InvalidKey(
            quantity.key,
            f"must have an axis for each of {', '.join(axes) or 'axes'}, but {quantity.name} is {list(values.shape)}",
            "say what they are: axes: [row, repetition], for one" + (" (task where there are tasks)" if task else ""),
        )
    _check_numbers(values, quantity)
    for axis, size in zip(axes, values.shape, strict=True):
        if sizes.setdefault(axis, size) != size:
            raise InvalidKey(quantity.key, f"must have the axis {axis} of {sizes[axis]} as the others, got {size}")
    order = [axes.index(axis) for axis in AXES if axis in axes]
    ordered = values.transpose(order)
    if task is not None:
        ordered = ordered[task]
    shape = [values.shape[axes.index(axis)] if axis in axes else 1 for axis in AXES[1:]]
    return np.asarray(ordered.reshape(shape), np.float64) * quantity.scale
