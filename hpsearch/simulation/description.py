"""A table's description: the columns with parameters, metrics and durations, and how to read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hpsearch.config.checks import InvalidKey, KeyPath, nearest

Axis = Literal["task", "row", "repetition", "iteration"]
AXES: tuple[Axis, ...] = ("task", "row", "repetition", "iteration")


@dataclass(frozen=True)
class Quantity:
    """Description of a parameter, a metric or the durations."""

    key: KeyPath
    """Its key in the description file."""
    name: str
    """Name of the column, or of the array in an archive."""
    scale: float = 1.0
    """Factor that multiplies the recorded values."""
    cumulative: bool | Literal["clipped"] = False
    """Whether recorded durations are cumulative. `clipped`: cumulative, and decreases count as 0."""
    column: str | int | None = None
    """Column in an array with several parameters: its index, or its name if `names` is given."""
    names: str | None = None
    """Name of the array that contains the columns' names."""
    axes: tuple[Axis, ...] | None = None
    """Names of the array's axes; None: defaults according to the number of axes."""


@dataclass(frozen=True)
class Description:
    """Content of the YAML file that describes a table."""

    table: str
    """Path of the data file, relative to the YAML file: .npz, .csv or .parquet."""
    parameters: Mapping[str, Quantity]
    metrics: Mapping[str, Quantity]
    seconds: Quantity | float = 1.0
    tasks: str | None = None
    """Column, or array, with the names of tasks, if the file contains several tables."""
    axes: tuple[Axis, ...] | None = None
    """Default axes of metrics and seconds."""
    iteration: str | None = None
    """The column that counts iterations from 1; None: each line is a run of one iteration."""
    repetition: str | None = None
    """The column that distinguishes runs of the same params."""
    failure: str | None = None
    """The column or array with the error message of each run; an empty value: the run didn't fail."""
    rows: Literal["nearest", "exact"] = "nearest"
    start_seconds: float = 0.0
    checkpoint_seconds: float = 0.0
    efficiency: float = 0.9


def check_task(task: str, tasks: Sequence[str] | None) -> None:
    """Check that a table's file contains a task.

    Args:
        task: Name of the task; empty if none was given.
        tasks: Names of the file's tasks; None: the file contains a single table without a task name.

    Raises:
        InvalidKey: The file doesn't contain the task.
    """
    if tasks is None:
        if task:
            raise InvalidKey((), f"holds one task, so nothing can stand behind #, got {task!r}")
    elif task not in tasks:
        raise InvalidKey(
            ("tasks",), f"holds {len(tasks)} tasks, of which #{task or '...'} is none", nearest(task, tasks)
        )
