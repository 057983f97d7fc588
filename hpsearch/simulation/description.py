"""What a table's description says: where parameters, metrics and durations stand, and how they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hpsearch.config.checks import KeyPath

__all__ = ["AXES", "Axis", "Description", "Quantity"]

Axis = Literal["task", "row", "repetition", "iteration"]
AXES: tuple[Axis, ...] = ("task", "row", "repetition", "iteration")


@dataclass(frozen=True)
class Quantity:
    """A parameter, a metric or the durations."""

    key: KeyPath
    """Where it is described."""
    name: str
    """The column, or the array of an archive."""
    scale: float = 1.0
    """What its values are multiplied by."""
    cumulative: bool | Literal["clipped"] = False
    """Each value holds those before it as well; `clipped`: one below that before it counts as 0. Of durations."""
    column: str | int | None = None
    """Which column of an array that holds several parameters; by name where `names` gives them."""
    names: str | None = None
    """The array of the columns' names."""
    axes: tuple[Axis, ...] | None = None
    """What the array's axes are; None: by their number."""


@dataclass(frozen=True)
class Description:
    """What the YAML file says."""

    table: str
    """The file, relative to this one: .npz, .csv or .parquet."""
    parameters: Mapping[str, Quantity]
    metrics: Mapping[str, Quantity]
    seconds: Quantity | float = 1.0
    tasks: str | None = None
    """Several tables in one file: the column, or array, of their labels."""
    axes: tuple[Axis, ...] | None = None
    """Of metrics and seconds that don't name their own."""
    iteration: str | None = None
    """The column that counts iterations from 1; None: each row is one of its own."""
    repetition: str | None = None
    """The column that tells runs of the same params from each other."""
    failure: str | None = None
    """The column, or array, that says how a row's run failed; empty where it didn't."""
    rows: Literal["nearest", "exact"] = "nearest"
    start_seconds: float = 0.0
    checkpoint_seconds: float = 0.0
    efficiency: float = 0.9
