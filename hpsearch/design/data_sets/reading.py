"""Read tables from CSV and Parquet files.

A copy of this file is saved with each model of `hpsearch design`: it needs Python, and pyarrow for Parquet.
"""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, TextIO

__all__ = ["TABLE_ENDINGS", "DataSetError", "TextTable", "read_table"]

_CSV_ENDINGS = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
_PARQUET_ENDINGS = (".parquet", ".pq")
TABLE_ENDINGS = _CSV_ENDINGS + _PARQUET_ENDINGS

_DELIMITERS = ",;\t|"
_LINES_LOOKED_AT = 100
_ROWS_AT_ONCE = 10_000
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")


class DataSetError(ValueError):
    """Data that can't be used: the message has the rule, the value and the location."""


@dataclass(frozen=True, slots=True)
class TextTable:
    """Columns of cells, all of one length."""

    path: Path
    columns: dict[str, Sequence[str]]
    """Cells as they are written, without the white space around them; an empty one has nothing in it."""
    places: Sequence[int]
    """Line of each row in a CSV file, or its row, from 1, in a Parquet file."""
    unit: str
    """Unit of the locations: `line` or `row`."""

    def place(self, row: int) -> str:
        """Return where a row (from 0) lies."""
        return f"{self.path}, {self.unit} {self.places[row]}"


def read_table(path: Path, only: Sequence[str] | None = None) -> TextTable:
    """Read a table.

    Args:
        path: A CSV file in UTF-8, packed or not, with cells between commas, semicolons, tabs or bars and names of
            columns in its first line; or a Parquet file.
        only: The columns to read, of which some may be missing; all if None.

    Raises:
        DataSetError: There is no such file, or it is no such table.
    """
    try:
        if path.name.lower().endswith(_PARQUET_ENDINGS):
            return _read_parquet(path, only)
        opened = gzip.open if path.suffix.lower() == ".gz" else open
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            return _read_csv(path, file, only)
    except UnicodeDecodeError as error:
        raise DataSetError(
            f"{path}: must be text in UTF-8, got byte {error.object[error.start]:#04x}, which can't stand there: save "
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
    kept = [place for place, name in enumerate(header) if only is None or name in only]
    columns: list[list[str]] = [[] for _ in kept]
    places: list[int] = []
    chunk: list[list[str]] = []

    def store() -> None:
        turned = list(zip(*chunk, strict=True))
        for column, place in zip(columns, kept, strict=True):
            column.extend(map(str.strip, turned[place]))
        chunk.clear()

    for line, row in rows:
        if len(row) != len(header):
            raise DataSetError(
                f"{path}, line {line}: must have {len(header)} cells, as the first line has, got {len(row)} between "
                f"{delimiter!r}: put a cell that holds {delimiter!r} into quotes"
            )
        if len(header) > 1 and [cell.strip() for cell in row] == header:
            raise DataSetError(f"{path}, line {line}: must be a row, got the names of the columns again: remove it")
        chunk.append(row)
        places.append(line)
        if len(chunk) == _ROWS_AT_ONCE:
            store()
    if chunk:
        store()
    return TextTable(path, dict(zip([header[place] for place in kept], columns, strict=True)), places, "line")


def _numbered_rows(path: Path, reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Return each row that isn't blank, with the line it begins in."""
    line = 1
    try:
        for row in reader:
            if row:
                yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataSetError(
            f"{path}, from line {line} on: must be CSV, got what can't be read: {error}; look for a quote that nothing "
            "closes"
        ) from error


def _delimiter(lines: list[str]) -> str:
    """Choose what parts most lines as often as the first, and the first most often."""
    best, found = (0.0, 1), ","
    for delimiter in _DELIMITERS:
        try:
            sizes = [len(row) for row in csv.reader(lines, delimiter=delimiter, skipinitialspace=True) if row]
        except csv.Error:
            continue
        if sizes and sizes[0] > 1:
            score = (sizes.count(sizes[0]) / len(sizes), sizes[0])
            if score > best:
                best, found = score, delimiter
    return found


def _names(path: Path, header: list[str]) -> list[str]:
    """Check the names of the columns; a column without a name is named by its index."""
    names = [name.strip() or f"column {place}" for place, name in enumerate(header, 1)]
    if not names:
        raise DataSetError(f"{path}: must be a table, with names of columns in its first line, but it is empty")
    for name in names:
        if names.count(name) > 1:
            places = " and ".join(str(place) for place, other in enumerate(names, 1) if other == name)
            raise DataSetError(f"{path}: must name each column once, got {name!r} as columns {places}")
    if all(_is_number(name) for name in names):
        raise DataSetError(
            f"{path}: must have names of columns in its first line, got numbers alone ({', '.join(names[:3])}): put a "
            "line with names before it"
        )
    return names


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


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
            if pyarrow.types.is_timestamp(column.type):  # Python's times have no nanoseconds
                column = column.cast(pyarrow.timestamp("us", column.type.tz), safe=False)
            columns[name] = _texts(path, name, column.to_pylist(), str(column.type))
        rows = file.metadata.num_rows
    except pyarrow.ArrowException as error:
        raise DataSetError(f"{path}: must be a Parquet file, but can't be read: {error}") from error
    return TextTable(path, columns, range(1, rows + 1), "row")


def _texts(path: Path, name: str, values: list[Any], kind: str) -> list[str]:
    """Write values as CSV would have them, from which the same values are read again."""
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
