"""Convert examples to a network's inputs, with preprocessing that was fitted on the training rows.

A copy of this file is saved with each model of `hpsearch design`, and reads the model's `preprocessing.json`. It needs
only Python and NumPy. The same code prepared the training inputs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .reading import Array, DataSetError

Note: TypeAlias = Callable[[str], object]
"""Called with a sentence for each kind of value in new examples that wasn't in the training rows."""

MISSING = frozenset(
    {"", "NA", "N/A", "n/a", "na", "NaN", "nan", "-nan", "NULL", "null", "None", "<NA>", "#N/A", "#NA", "?"}
)
"""Texts of missing values."""

BOOLEANS = {"true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0, "t": 1.0, "f": 0.0, "y": 1.0, "n": 0.0}

LARGEST = 1e150
"""Larger numbers count as missing, because their squares would be infinite."""

_FAR = 10.0
"""Numbers are clipped to this many scales from the mean."""

_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ].+)?")
_EPOCH = datetime(1970, 1, 1)
_DAY = 86400.0
_CYCLES = {"year": 365.2425, "week": 7.0, "day": 1.0}
"""Period to its length in days."""


def load(folder: Path) -> dict[str, Any]:
    """Read the fitted preprocessing."""
    path = folder / "preprocessing.json"
    try:
        fitted: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DataSetError(f"{path}: must be what `hpsearch design` left there, but can't be read: {error}") from error
    return fitted


def transform(
    fitted: Mapping[str, Any], cells: Mapping[str, Sequence[str] | Array], location: Callable[[int], str], note: Note
) -> NDArray[np.float32]:
    """Convert rows to inputs.

    Args:
        fitted: The content of `preprocessing.json`.
        cells: Cells of each column, in any order; unknown columns are ignored.
        location: Returns a row's location.
        note: Called with a message on values that weren't in the training rows.

    Returns:
        Shape (rows, features).

    Raises:
        DataSetError: A column is missing, or a cell doesn't have the type of its column; the message names both.
    """
    columns = fitted["columns"]
    missing = [repr(column["name"]) for column in columns if column["name"] not in cells]
    if missing:
        there = ", ".join(map(repr, cells)) or "none of them"
        raise DataSetError(
            f"must have all columns that were trained on, but lacks {', '.join(missing)}; there are {there}"
        )
    parts = []
    for column in columns:
        values = parse(column, cells[column["name"]], location)
        _note_unknown(column, values, note)
        parts.append(features(column, values))
    return np.concatenate(parts, axis=1)


def check_pixels(fitted: Mapping[str, Any], images: Array, location: Callable[[int], str], note: Note) -> None:
    """Check that images have the shape and the kind of pixels of the training images.

    Raises:
        DataSetError: The shape differs, or pixels are fractions instead of bytes or bytes instead of fractions.
    """
    if list(images.shape[1:]) != fitted["inputs"]:
        raise DataSetError(
            f"{location(0)}: must be images of (channels, height, width) {fitted['inputs']}, as in training, got "
            f"{list(images.shape[1:])}"
        )
    span = fitted["most"] - fitted["least"]
    far = [0, 0]
    for row, image in enumerate(images):
        if fitted["bytes"] and not (image.min() >= 0 and image.max() <= 255 and (image == np.floor(image)).all()):
            raise DataSetError(
                f"{location(row)}: must be an image of bytes, 0 to 255, as in training, got {image.dtype} numbers "
                f"from {image.min()} to {image.max()}"
            )
        out = max(fitted["least"] - float(image.min()), float(image.max()) - fitted["most"])
        if not fitted["bytes"] and not out <= 10 * span:
            raise DataSetError(
                f"{location(row)}: must be an image of numbers from {fitted['least']:g} to {fitted['most']:g}, as "
                f"in training, got some from {image.min()} to {image.max()}"
            )
        far[0] += out > 0.5 * span
        far[1] += float(image.max()) - float(image.min()) < span / 100
    if far[0]:
        note(f"{far[0]} images have pixels far from those from {fitted['least']:g} to {fitted['most']:g} of training")
    if far[1] > len(images) / 2:
        note(
            f"{far[1]} of {len(images)} images are nearly of one color; in training they went from {fitted['least']:g} "
            f"to {fitted['most']:g}"
        )


def network_inputs(fitted: Mapping[str, Any], inputs: Array) -> NDArray[np.float32]:
    """Return the network's inputs: float32, with images standardized by channel."""
    if inputs.ndim != 4:
        return inputs.astype(np.float32)
    mean, scale = (np.array(fitted[name], np.float32)[:, None, None] for name in ("channel_means", "channel_scales"))
    return (inputs.astype(np.float32) - mean) / scale


def parse(column: Mapping[str, Any], cells: Sequence[str] | Array, location: Callable[[int], str]) -> Array:
    """Parse the cells of a column.

    Args:
        column: The column's `kind`, `name`, and `missing_texts`.
        cells: Texts; or numbers, with NaN for missing values.
        location: Returns a row's location.

    Returns:
        float64: numbers, 0 or 1 for booleans, seconds since 1970 for dates, NaN for missing values; or an array of
        texts for categories, with None for missing values.

    Raises:
        DataSetError: A cell doesn't have the column's type; the message names row and column.
    """
    if not isinstance(cells, np.ndarray):
        return _parse_texts(column, cells, location)
    values = cells.astype(np.float64)
    values[~(np.abs(values) <= LARGEST)] = np.nan
    return values


def _parse_texts(column: Mapping[str, Any], cells: Sequence[str], location: Callable[[int], str]) -> Array:
    kind, missing = column["kind"], MISSING.union(column.get("missing_texts", ()))
    if kind == "category":
        texts = np.empty(len(cells), dtype=object)
        texts[:] = [None if cell in missing else cell for cell in cells]
        return texts
    date = partial(_date, column.get("zoned", False))
    readers: Mapping[str, Callable[[str], float]] = {"number": _number, "boolean": _boolean, "date": date}
    values: list[float] = []
    try:
        for cell in cells:
            values.append(np.nan if cell in missing else readers[kind](cell))
    except (ValueError, KeyError, OverflowError) as error:
        expected = {
            "number": "numbers, with a point and without spaces or commas",
            "boolean": "true or false",
            "date": "dates such as 2024-05-31T17:00"
            + ("+02:00, with a time zone" if column.get("zoned") else ", without a time zone"),
        }[kind]
        raise DataSetError(
            f"{location(len(values))}: column {column['name']!r} must hold {expected}, got {cell!r}"
        ) from error
    numbers = np.array(values, np.float64)
    numbers[~(np.abs(numbers) <= LARGEST)] = np.nan
    return numbers


def _number(cell: str) -> float:
    if "_" in cell:  # Python would accept it
        raise ValueError
    return float(cell)


def _boolean(cell: str) -> float:
    return float(cell) if cell in ("0", "1") else BOOLEANS[cell.lower()]


def _date(zoned: bool, cell: str) -> float:
    date = datetime.fromisoformat(cell)
    if not _DATE.fullmatch(cell) or (date.tzinfo is not None) != zoned:
        raise ValueError
    return ((date.astimezone(UTC).replace(tzinfo=None) if zoned else date) - _EPOCH).total_seconds()


def features(column: Mapping[str, Any], values: Array) -> NDArray[np.float32]:
    """Return the features of a column's values, (rows, features). A row's features depend only on its own value."""
    if column["kind"] == "category":
        return _one_hot(column, values)
    absent = np.isnan(values)
    filled = np.where(absent, column["median"], values)
    columns = [_scaled(column, filled)]
    for name in column.get("cycles", ()):
        angle = filled / _DAY * (2 * np.pi / _CYCLES[name])
        columns += [np.where(absent, 0.0, np.sin(angle)), np.where(absent, 0.0, np.cos(angle))]
    if column["indicator"]:
        columns.append(absent.astype(np.float64))
    return np.stack(columns, axis=1).astype(np.float32)


def _scaled(column: Mapping[str, Any], values: NDArray[np.float64]) -> NDArray[np.float64]:
    scaled: NDArray[np.float64] = np.clip((bent(column, values) - column["mean"]) / column["scale"], -_FAR, _FAR)
    return scaled


def bent(column: Mapping[str, Any], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values; if the column has heavy tails, signed logarithms of their distances from the median."""
    if not column["log"]:
        return values
    distance = (values - column["median"]) / column["spread"]
    logarithms: NDArray[np.float64] = np.sign(distance) * np.log1p(np.abs(distance))
    return logarithms


def _one_hot(column: Mapping[str, Any], values: Array) -> NDArray[np.float32]:
    """Return one feature per category, and one each for other categories and missing values if training had some."""
    positions: dict[str | None, int] = {name: index for index, name in enumerate(column["categories"])}
    count = len(positions)
    if column["indicator"]:
        positions[None] = count
        count += 1
    index_of_others = count if column["others"] else -1
    count += column["others"]
    if not column["indicator"]:
        positions[None] = -1
    indices = np.array([positions.get(value, index_of_others) for value in values], dtype=np.int64).reshape(-1)
    one_hot = np.zeros((len(values), count), np.float32)
    rows = np.flatnonzero(indices >= 0)
    one_hot[rows, indices[rows]] = 1
    return one_hot


def _note_unknown(column: Mapping[str, Any], values: Array, note: Note) -> None:
    """Note unknown categories in a column, and missing values if training had none."""
    name = column["name"]
    if column["kind"] == "category":
        categories = {*column["categories"], *column["rare"], None}
        unknown = [value for value in values if value not in categories]
        if unknown:
            some = ", ".join(sorted(set(unknown))[:3])
            note(f"column {name!r}: {len(unknown)} rows have a category that training never saw ({some})")
        absent = sum(value is None for value in values)
    else:
        absent = int(np.isnan(values).sum())
        far = np.abs((bent(column, values) - column["mean"]) / column["scale"]) > _FAR
        if far.any():
            note(f"column {name!r}: {far.sum()} rows hold {values[far][0]:g} or so, far beyond what training saw")
    if absent and not column["indicator"]:
        note(f"column {name!r}: {absent} rows have nothing there, which training never saw")
