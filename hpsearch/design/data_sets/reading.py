"""Read tables from CSV and Parquet files, arrays from NPZ, NPY and IDX files, and images.

A copy of this file is saved with each model of `hpsearch design`. It needs Python and NumPy, pyarrow for Parquet, and
Pillow for images.
"""

from __future__ import annotations

import csv
import gzip
import math
import re
import struct
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

_CSV_ENDINGS = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
_PARQUET_ENDINGS = (".parquet", ".pq")
TABLE_ENDINGS = _CSV_ENDINGS + _PARQUET_ENDINGS

_DELIMITERS = ",;\t|"
_LINES_LOOKED_AT = 100
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")


class DataSetError(ValueError):
    """Data that can't be used. The message contains the rule, the value and the location."""


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of text cells, by column."""

    path: Path
    columns: dict[str, Sequence[str]]
    """Cells as in the file, without surrounding white space; a cell may be empty."""
    numbers: Sequence[int]
    """For each row, its line in a CSV file, or its row number (from 1) in a Parquet file."""
    unit: str
    """Unit of the locations: `line` or `row`."""

    def location(self, row: int) -> str:
        """Return the location of a row (from 0) in the file."""
        return f"{self.path}, {self.unit} {self.numbers[row]}"


def read_table(path: Path, only: Sequence[str] | None = None) -> TextTable:
    """Read a table.

    Args:
        path: A CSV file in UTF-8, possibly compressed with gzip, with names of columns in its first line and commas,
            semicolons, tabs or bars as delimiters; or a Parquet file.
        only: The columns to read, some of which may be missing; None: all.

    Raises:
        DataSetError: The file doesn't exist, or isn't such a table.
    """
    try:
        if path.name.lower().endswith(_PARQUET_ENDINGS):
            return _read_parquet(path, only)
        opened = gzip.open if path.suffix.lower() == ".gz" else open
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            return _read_csv(path, file, only)
    except UnicodeDecodeError as error:
        raise DataSetError(
            f"{path}: must be text in UTF-8, got byte {error.object[error.start]:#04x}, which isn't valid there: save "
            "it in UTF-8"
        ) from error
    except (OSError, EOFError) as error:
        raise DataSetError(f"{path}: must be a CSV or Parquet file, but can't be read: {error}") from error


def _read_csv(path: Path, file: TextIO, only: Sequence[str] | None) -> TextTable:
    delimiter = _delimiter([line for _, line in zip(range(_LINES_LOOKED_AT), file, strict=False)])
    file.seek(0)
    rows = _numbered_rows(path, csv.reader(file, delimiter=delimiter, skipinitialspace=True, strict=True))
    _, header = next(rows, (0, []))
    header = _names(path, header)
    selected = [index for index, name in enumerate(header) if only is None or name in only]
    columns: dict[str, list[str]] = {header[index]: [] for index in selected}
    numbers: list[int] = []
    for line, row in rows:
        if len(row) != len(header):
            raise DataSetError(
                f"{path}, line {line}: must have {len(header)} cells, as the first line has, got {len(row)} between "
                f"{delimiter!r}: put a cell that holds {delimiter!r} into quotes"
            )
        if len(header) > 1 and [cell.strip() for cell in row] == header:
            raise DataSetError(f"{path}, line {line}: must be a row, got the names of the columns again: remove it")
        for column, index in zip(columns.values(), selected, strict=True):
            column.append(row[index].strip())
        numbers.append(line)
    return TextTable(path, dict(columns), numbers, "line")


def _numbered_rows(path: Path, reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of its first line, cells) of each row that isn't blank."""
    line = 1
    try:
        for row in reader:
            if row:
                yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataSetError(
            f"{path}, from line {line} on: must be CSV, but can't be read: {error}; look for a quote that isn't closed"
        ) from error


def _delimiter(lines: list[str]) -> str:
    """Return the delimiter for which the largest share of lines has as many cells as the first line.

    If tied, the one with the most cells in the first line.
    """
    best, best_delimiter = (0.0, 1), ","
    for delimiter in _DELIMITERS:
        try:
            sizes = [len(row) for row in csv.reader(lines, delimiter=delimiter, skipinitialspace=True) if row]
        except csv.Error:
            continue
        if sizes and sizes[0] > 1:
            score = (sizes.count(sizes[0]) / len(sizes), sizes[0])
            if score > best:
                best, best_delimiter = score, delimiter
    return best_delimiter


def _names(path: Path, header: list[str]) -> list[str]:
    """Return the checked names of the columns; an unnamed column gets its index as name."""
    names = [name.strip() or f"column {index}" for index, name in enumerate(header, 1)]
    if not names:
        raise DataSetError(f"{path}: must be a table, with names of columns in its first line, but it is empty")
    for name in names:
        if names.count(name) > 1:
            indices = " and ".join(str(index) for index, other in enumerate(names, 1) if other == name)
            raise DataSetError(f"{path}: must name each column once, got {name!r} as columns {indices}")
    if all(is_number(name) for name in names):
        raise DataSetError(
            f"{path}: must have names of columns in its first line, got numbers alone ({', '.join(names[:3])}): put a "
            "line with names before it"
        )
    return names


def is_number(text: str) -> bool:
    """Return whether the text of a cell is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def _read_parquet(path: Path, only: Sequence[str] | None) -> TextTable:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise DataSetError(
            f"{path}: Parquet is read with pyarrow, which isn't installed: pip install pyarrow"
        ) from error
    try:
        file = parquet.ParquetFile(path)
        names = [name for name in file.schema_arrow.names if not _PANDAS_INDEX.fullmatch(name)]
        _names(path, names)
        names = [name for name in names if only is None or name in only]
        columns: dict[str, Sequence[str]] = {}
        for name in names:
            column = file.read(columns=[name], use_pandas_metadata=False).column(name)
            if pyarrow.types.is_timestamp(column.type):  # Python's datetime has no nanoseconds
                column = column.cast(pyarrow.timestamp("us", column.type.tz), safe=False)
            columns[name] = _texts(path, name, column.to_pylist(), str(column.type))
        rows = file.metadata.num_rows
    except pyarrow.ArrowException as error:
        raise DataSetError(f"{path}: must be a Parquet file, but can't be read: {error}") from error
    return TextTable(path, columns, range(1, rows + 1), "row")


def _texts(path: Path, name: str, values: list[Any], kind: str) -> list[str]:
    """Return values as texts in a CSV file, from which the same values would be read."""
    texts = []
    for row, value in enumerate(values, 1):
        if isinstance(value, str):
            texts.append(value.strip())
        elif value is None or value != value:
            texts.append("")
        elif isinstance(value, bool | int | float | Decimal):
            texts.append(str(value))
        elif isinstance(value, date | datetime):
            texts.append(value.isoformat())
        else:
            raise DataSetError(
                f"{path}, row {row}: column {name!r} must hold numbers, texts, booleans or dates, got {kind}: leave it "
                "out or write it as columns of those"
            )
    return texts


Array: TypeAlias = NDArray[Any]

_IDX = re.compile(r".*idx\d-u?byte(\.gz)?", re.IGNORECASE)
_IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_CHANNELS = (1, 3, 4)


def is_idx(path: Path) -> bool:
    """Return whether a file's name is like those of MNIST, such as train-images-idx3-ubyte.gz."""
    return _IDX.fullmatch(path.name) is not None


def read_npz(path: Path) -> dict[str, Array]:
    """Read all arrays of an NPZ file, by name. The array of an NPY file has an empty name.

    Raises:
        DataSetError: The file can't be read, or has an array of Python objects, which only unpickling could read.
    """
    name = ""
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {"": loaded}
        with loaded:
            arrays = {}
            for name in loaded.files:
                arrays[name] = loaded[name]
            return arrays
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, struct.error) as error:
        array = f", array {name!r}" if name else ""
        raise DataSetError(
            f"{path}{array}: must be an NPZ or NPY file with arrays of numbers or texts, but can't be read: {error}"
        ) from error


def read_idx(path: Path) -> Array:
    """Read an IDX file, possibly compressed with gzip.

    Format: two zero bytes, the type, the number of dimensions, the size of each (32 bits), then the numbers.

    Raises:
        DataSetError: The file can't be read, or isn't an IDX file.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise DataSetError(f"{path}: must be an IDX file, but can't be read: {error}") from error
    dimensions = content[3] if len(content) > 3 else 0
    start = 4 + 4 * dimensions
    if content[:2] != b"\0\0" or dimensions == 0 or len(content) < start or content[2] not in _IDX_TYPES:
        raise DataSetError(f"{path}: must be an IDX file, got one that begins with {content[:4].hex(' ') or 'nothing'}")
    kind = np.dtype(_IDX_TYPES[content[2]])
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    if len(content) - start != math.prod(shape) * kind.itemsize:
        raise DataSetError(
            f"{path}: must hold {math.prod(shape)} numbers, as its head says (shape {list(shape)}), got "
            f"{(len(content) - start) // kind.itemsize}: fetch it again"
        )
    return np.frombuffer(content, kind, offset=start).reshape(shape).astype(kind.newbyteorder("="), copy=False)


def new_array(path: Path, name: str | None) -> Array:
    """Read the array to predict for: the only array of a file, or the array with the training array's name."""
    if path.suffix.lower() not in (".npz", ".npy"):
        return read_idx(path)
    arrays = read_npz(path)
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    if name not in arrays:
        raise DataSetError(f"{path}: must hold one array, or {name!r} as in training, got {listed(arrays)}")
    return arrays[name]


def listed(arrays: dict[str, Array]) -> str:
    """Return the names and shapes of arrays as text."""
    return ", ".join(f"{name!r} {list(array.shape)}" for name, array in arrays.items()) or "none"


def as_images(array: Array, where: str) -> Array:
    """Return images of shape (rows, channels, height, width); in `array`, channels may also be last or missing.

    Raises:
        DataSetError: The position of the channels is ambiguous.
    """
    if array.ndim == 3:
        return array[:, None]
    first, last = array.shape[1] in _CHANNELS, array.shape[3] in _CHANNELS
    if first == last:
        first, last = array.shape[2] == array.shape[3], array.shape[1] == array.shape[2]
    if first == last:
        raise DataSetError(
            f"{where}: must be images of shape (rows, channels, height, width) or (rows, height, width, channels), got "
            f"{list(array.shape)}, which may be both or neither: give (rows, height, width) or other sizes"
        )
    return array if first else np.ascontiguousarray(array.transpose(0, 3, 1, 2))


def check_finite(images: Array, locations: Iterable[str]) -> None:
    """Raise a DataSetError if a pixel isn't a finite number."""
    if images.dtype.kind != "f":
        return
    for image, location in zip(images, locations, strict=False):
        if not np.isfinite(image).all():
            raise DataSetError(f"{location}: must be an image of finite numbers, got {image[~np.isfinite(image)][0]}")


IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")

_GREY_MODES = ("1", "L")
_CLEAR_MODES = ("LA", "La", "PA", "RGBA", "RGBa")
_WIDE = 257
"""Divisor from 16 bits to 8: 65,535 becomes 255."""


def image_paths(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the images in a folder and its subfolders, and the other files, each sorted by path.

    Files and folders whose names start with a dot are ignored.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    visible = [path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    images = [path for path in visible if path.suffix.lower() in IMAGE_ENDINGS]
    return images, [path for path in visible if path not in set(images)]


def open_image(path: Path) -> Any:
    """Read an image with 8 bits and its EXIF rotation, as mode L or RGB, with transparency over white.

    Raises:
        DataSetError: The image can't be read, or the range of its pixels is unknown.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise DataSetError(f"{path}: images are read with Pillow, which isn't installed: pip install pillow") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about odd tags, and about large images, which are refused below
            with Image.open(path) as file:
                file.load()
                image = ImageOps.exif_transpose(file)
        if image.mode == "F" or image.mode.startswith("I"):
            return Image.fromarray(_narrowed(path, np.asarray(image)))
        if image.mode in _CLEAR_MODES or "transparency" in image.info:
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
        return image.convert("L" if image.mode in _GREY_MODES else "RGB")
    except DataSetError:
        raise
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise DataSetError(
            f"{path}: must be an image, but can't be read: {error}; remove it or fetch it again"
        ) from error


def _narrowed(path: Path, wide: NDArray[Any]) -> NDArray[np.uint8]:
    if wide.dtype.kind == "f" or wide.min() < 0 or wide.max() > 255 * _WIDE:
        raise DataSetError(
            f"{path}: must be an image of 8 or 16 bits, got pixels from {wide.min()} to {wide.max()}: save it as PNG"
        )
    return ((wide.astype(np.int64) + _WIDE // 2) // _WIDE).astype(np.uint8)


def is_grey(image: Any) -> bool:
    """Return whether an image has no colors, in any mode."""
    if image.mode == "L":
        return True
    colors = np.asarray(image)
    return bool((colors == colors[..., :1]).all())


def pixels(image: Any, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Return an image's pixels, resized to (channels, height, width)."""
    from PIL import Image

    channels, height, width = shape
    image = image.convert("L" if channels == 1 else "RGB")
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    values = np.asarray(image, np.uint8).reshape(height, width, channels)
    return np.ascontiguousarray(values.transpose(2, 0, 1))
