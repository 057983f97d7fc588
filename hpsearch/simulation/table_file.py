"""Read a table from a YAML file, which names the file of recorded curves and describes its columns or arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from hpsearch.config.checks import InvalidKey, InvalidKeys, KeyPath, boolean, integer, number, one_of, shown, text
from hpsearch.config.import_paths import table_and_task
from hpsearch.errors import SweepError
from hpsearch.simulation.description import AXES, Axis, Description, Quantity
from hpsearch.simulation.recorded_arrays import recorded_arrays
from hpsearch.simulation.recorded_columns import recorded_columns
from hpsearch.simulation.table import Table
from hpsearch.sweep.document import read_document
from hpsearch.sweep.reader import KeyReader, Kind, listed


def read_table(named: str, folders: Sequence[str] = ("",), data: Path | None = None) -> Table:
    """Read a table.

    Args:
        named: Path of its description. If there are several tasks, it is followed by `#` and the task.
        folders: Base folders of a relative path. The first folder that contains the path is used.
        data: Folder of the file of curves, if it isn't next to the description.

    Raises:
        SweepError: There is no such table, or its description is invalid; the message has file, line and key.
    """
    name, task = table_and_task(named)
    path = next((path for folder in folders if (path := Path(folder, name)).exists()), Path(name))
    document = read_document(path, "table")
    try:
        description = _read(document.value)
        source = _source(path, description.table, data)
        if not source.is_file():
            problem = "isn't one" if source.exists() else "isn't there"
            raise InvalidKey(("table",), f"must be a file, but {source} {problem}")
        read = recorded_arrays if source.suffix == ".npz" else recorded_columns
        table = Table(read(source, description, task), description.rows)
    except (InvalidKey, InvalidKeys) as error:
        raise document.located(error) from None
    except SweepError as error:
        raise SweepError(f"{path}: {error}") from None
    table.start_seconds = description.start_seconds
    table.checkpoint_seconds = description.checkpoint_seconds
    table.efficiency = description.efficiency
    return table


def table_digest(named: str, data: Path | None = None) -> str:
    """Return a digest of a table's description and file, for all its tasks; empty if they can't be read."""
    path = Path(table_and_task(named)[0])
    digest = hashlib.blake2b(digest_size=8)
    try:
        digest.update(path.read_bytes())
        with _source(path, _read(read_document(path).value).table, data).open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except (OSError, SweepError):
        return ""
    return digest.hexdigest()


def _source(path: Path, table: str, data: Path | None) -> Path:
    source = path.parent / table
    return source if data is None or source.is_file() else data / table


def _read(value: object) -> Description:
    kinds: Mapping[str, Kind[Any]] = {
        "table": _file,
        "parameters": partial(_quantities, "lr: learning_rate", ("name", "scale", "column", "names")),
        "metrics": partial(_quantities, "accuracy: val_accuracy", ("name", "scale", "axes")),
        "seconds": _seconds,
        "tasks": text,
        "axes": _axes,
        "iteration": text,
        "repetition": text,
        "failure": text,
        "rows": partial(one_of, ("nearest", "exact")),
        "start_seconds": _duration,
        "checkpoint_seconds": _duration,
        "efficiency": _efficiency,
    }
    keys = KeyReader(value, (), tuple(kinds))
    required = {
        "table": "table: curves.parquet",
        "parameters": "parameters: {lr: learning_rate}",
        "metrics": "metrics: {accuracy: val_accuracy}",
    }
    return keys.build(Description, **keys.read(kinds, required))


def _file(value: object, key: KeyPath) -> str:
    name = text(value, key)
    if not name.endswith((".npz", ".csv", ".parquet")):
        raise InvalidKey(key, f"must be a file that ends in .npz, .csv or .parquet, got {shown(name)}")
    return name


def _quantities(example: str, keys: Sequence[str], value: object, key: KeyPath) -> dict[str, Quantity]:
    if not isinstance(value, Mapping) or not value:
        raise InvalidKey(key, f"must be a mapping of names to columns, as {{{example}}}, got {shown(value)}")
    return {text(name, key): _quantity(keys, item, (*key, name)) for name, item in value.items()}


def _seconds(value: object, key: KeyPath) -> Quantity | float:
    if isinstance(value, str | Mapping):
        return _quantity(("name", "scale", "cumulative", "axes"), value, key)
    return _duration(value, key)


def _duration(value: object, key: KeyPath) -> float:
    seconds = number(value, key)
    if seconds < 0:
        raise InvalidKey(key, f"must be at least 0 seconds, got {shown(value)}")
    return seconds


def _efficiency(value: object, key: KeyPath) -> float:
    fraction = number(value, key)
    if not 0.5 <= fraction <= 1:
        raise InvalidKey(key, f"must be from 0.5 (more workers gain nothing) to 1 (each counts whole), got {fraction}")
    return fraction


def _quantity(keys: Sequence[str], value: object, key: KeyPath) -> Quantity:
    """Parse a name, or a mapping with these keys.

    Raises:
        InvalidKey: The value is neither, or a key of the mapping is invalid.
    """
    if isinstance(value, str):
        return Quantity(key, text(value, key))
    table = KeyReader(value, key, keys)
    kinds: Mapping[str, Kind[Any]] = {
        "name": text,
        "scale": number,
        "cumulative": _cumulative,
        "column": _column,
        "names": text,
        "axes": _axes,
    }
    return table.build(
        partial(Quantity, key), **table.read({name: kinds[name] for name in keys}, {"name": "name: accuracy"})
    )


def _axes(value: object, key: KeyPath) -> tuple[Axis, ...]:
    """Read the names of an array's axes.

    Raises:
        InvalidKey: An axis is unknown or repeated, or `row` is missing.
    """
    axes = tuple(one_of(AXES, item, (*key, index)) for index, item in enumerate(listed(value, key)))
    if len(set(axes)) < len(axes) or "row" not in axes:
        raise InvalidKey(key, f"must name each axis once, row among them, got {', '.join(axes)}")
    return axes  # type: ignore[return-value]


def _cumulative(value: object, key: KeyPath) -> bool | Literal["clipped"]:
    return "clipped" if value == "clipped" else boolean(value, key)


def _column(value: object, key: KeyPath) -> str | int:
    return value if isinstance(value, str) else integer(value, key)
