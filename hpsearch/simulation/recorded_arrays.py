"""Recorded curves from the arrays of an NPZ archive."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpsearch.checks import InvalidKey, KeyPath, nearest
from hpsearch.simulation.description import AXES, Axis, Description, Quantity
from hpsearch.simulation.table import Floats, Recorded, each_iteration

__all__ = ["recorded_arrays"]

Arrays = Mapping[str, NDArray[Any]]

_USUAL: Mapping[int, tuple[Axis, ...]] = {
    1: ("row",),
    2: ("row", "iteration"),
    3: ("row", "repetition", "iteration"),
}
"""Axes by their number, beside that of tasks."""


def recorded_arrays(path: Path, described: Description, task: str) -> Recorded:
    """Read an archive.

    Raises:
        InvalidKey: It can't be read, or doesn't hold what the description says.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = dict(archive.items())
    except (OSError, ValueError, EOFError) as error:
        raise InvalidKey(("table",), f"must be an archive of arrays: {error}") from None
    place = _task(arrays, described, task)
    metrics = {name: _values(arrays, q, described, place) for name, q in described.metrics.items()}
    shape = np.broadcast_shapes(*(values.shape for values in metrics.values()))
    if isinstance(described.seconds, Quantity):
        seconds = _values(arrays, described.seconds, described, place)
        seconds = each_iteration(seconds, described.seconds.cumulative)
    else:
        seconds = np.full(shape, described.seconds)
    shape = np.broadcast_shapes(shape, seconds.shape)
    return Recorded(
        {name: _column(arrays, quantity) for name, quantity in described.parameters.items()},
        {name: np.broadcast_to(values, shape) for name, values in metrics.items()},
        np.broadcast_to(seconds, shape),
        () if described.failure is None else [str(text) for text in _array(arrays, described.failure, ("failure",))],
    )


def _array(arrays: Arrays, name: str, key: KeyPath) -> NDArray[Any]:
    if name not in arrays:
        raise InvalidKey(key, f"must name an array of the archive, got {name!r}", nearest(name, arrays))
    return arrays[name]


def _task(arrays: Arrays, described: Description, task: str) -> int | None:
    """Give the place of a task on the axis of tasks; None where there is no such axis."""
    if described.tasks is None:
        if task:
            raise InvalidKey((), f"holds one task, so nothing can stand behind #, got {task!r}")
        return None
    labels = [str(label) for label in _array(arrays, described.tasks, ("tasks",)).tolist()]
    if task not in labels:
        raise InvalidKey(
            ("tasks",), f"holds {len(labels)} tasks, of which #{task or '...'} is none", nearest(task, labels)
        )
    return labels.index(task)


def _column(arrays: Arrays, quantity: Quantity) -> list[Any]:
    """Give a parameter's value for each row."""
    values = _array(arrays, quantity.name, quantity.key)
    column = quantity.column
    if values.ndim == 2 and column is not None:
        if quantity.names is not None:
            names = [str(name) for name in _array(arrays, quantity.names, (*quantity.key, "names")).tolist()]
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
    if values.ndim != 1:
        raise InvalidKey(
            quantity.key,
            f"must have one value for each row, but {quantity.name} is {list(values.shape)}: name a column",
        )
    scaled: list[Any] = (values if quantity.scale == 1.0 else values * quantity.scale).tolist()
    return scaled


def _values(arrays: Arrays, quantity: Quantity, described: Description, task: int | None) -> Floats:
    """Give a quantity as [rows, repetitions, iterations], the last two 1 where it has no such axis."""
    values = _array(arrays, quantity.name, quantity.key)
    with_task: tuple[Axis, ...] = () if task is None else ("task",)
    axes = quantity.axes or described.axes or (*with_task, *_USUAL.get(values.ndim - len(with_task), ()))
    if len(axes) != values.ndim or ("task" in axes) != (task is not None):
        raise InvalidKey(
            quantity.key,
            f"must have an axis for each of {', '.join(axes) or 'axes'}, but {quantity.name} is {list(values.shape)}",
            "say what they are: axes: [row, repetition], for one" + (" (task where there are tasks)" if task else ""),
        )
    if not np.issubdtype(values.dtype, np.number):
        raise InvalidKey(quantity.key, f"must hold numbers, but {quantity.name} is of {values.dtype}")
    order = [axes.index(axis) for axis in AXES if axis in axes]
    ordered = values.transpose(order)
    if task is not None:
        ordered = ordered[task]
    shape = [values.shape[axes.index(axis)] if axis in axes else 1 for axis in AXES[1:]]
    return np.asarray(ordered.reshape(shape), np.float64) * quantity.scale
