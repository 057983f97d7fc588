"""A table's description: columns of parameters, metrics and durations, and how they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hpsearch.config.checks import InvalidKey, KeyPath, nearest

Axis = Literal["task", "row", "repetition", "iteration"]
AXES: tuple[Axis, ...] = ("task", "row", "repetition", "iteration")


@dataclass(frozen=True)
class Quantity:
    """A parameter, a metric or the durations."""

    key: KeyPath
    """Location in the description."""
    name: str
    """The column, or the array of an archive."""
    scale: float = 1.0
    """Factor of its values."""
    cumulative: bool | Literal["clipped"] = False
    """For durations: values are cumulative; `clipped`: decreases count as 0."""
    column: str | int | None = None
    """Column of an array with several parameters; by name if `names` defines them."""
    names: str | None = None
    """The array of the columns' names."""
    axes: tuple[Axis, ...] | None = None
    """Names of the array's axes; None: defaults by their number."""


@dataclass(frozen=True)
class Description:
    """Content of the YAML file."""

    table: str
    """The file, relative to this one: .npz, .csv or .parquet."""
    parameters: Mapping[str, Quantity]
    metrics: Mapping[str, Quantity]
    seconds: Quantity | float = 1.0
    tasks: str | None = None
    """Several tables in one file: the column, or array, of their labels."""
    axes: tuple[Axis, ...] | None = None
    """Default file of metrics and seconds."""
    iteration: str | None = None
    """The column that counts iterations from 1; None: each row is one of its own."""
    repetition: str | None = None
    """The column that distinguishes runs of the same params."""
    failure: str | None = None
    """The column or array with the error of a row's run; empty if it didn't fail."""
    rows: Literal["nearest", "exact"] = "nearest"
    start_seconds: float = 0.0
    checkpoint_seconds: float = 0.0
    efficiency: float = 0.9


def check_task(task: str, tasks: Sequence[str] | None) -> None:
    """Check that a table's file holds a task.

    Args:
        task: Its name; empty without one.
        tasks: Names of the file's tasks; None: it holds one, without a name.

    Raises:
        InvalidKey: It doesn't.
    """
    if tasks is None:
        if task:
            raise InvalidKey((), f"holds one task, so nothing can stand behind #, got {task!r}")
    elif task not in tasks:
        raise InvalidKey(
            ("tasks",), f"holds {len(tasks)} tasks, of which #{task or '...'} is none", nearest(task, tasks)
        )
