"""Rows as CSV, JSON and DataFrames, and values as cells.

JSON can't represent non-finite numbers. They become the strings `"NaN"`, `"Infinity"` and `"-Infinity"`.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpsearch.tables.wording import number
from hpsearch.trial import Params, Value

if TYPE_CHECKING:
    import pandas as pd


def csv_text(columns: Iterable[str], rows: Iterable[Sequence[Value]]) -> str:
    r"""Return rows as CSV with a header and `\n` line ends."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    # A carriage return inside a value ends the line for most readers unless it is quoted; whether csv quotes
    # the csv module's own choice depends on Python's version.
    careful = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(columns)
    for row in rows:
        fields = [csv_field(value) for value in row]
        chosen = careful if any("\r" in field for field in fields) else writer
        chosen.writerow(fields)
    return text.getvalue()


def csv_field(value: Value) -> str:
    """Format a param's value or another cell for CSV."""
    if value is None:
        return ""
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else str(value)


def json_text(entries: Iterable[Mapping[str, Value]]) -> str:
    """Return objects as a JSON array, one per line."""
    lines = [json.dumps(strict_json(entry), ensure_ascii=False, allow_nan=False) for entry in entries]
    return "[\n" + ",\n".join(lines) + "\n]" if lines else "[]"


def indented_json(record: Value, ensure_ascii: bool = True) -> str:
    """Return a value as JSON on several lines."""
    return json.dumps(strict_json(record), indent=2, ensure_ascii=ensure_ascii, allow_nan=False)


def strict_json(value: Value) -> Value:
    """Return a value with the strings `"NaN"`, `"Infinity"` and `"-Infinity"` for floats that aren't finite."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {name: strict_json(entry) for name, entry in value.items()}
    return [strict_json(entry) for entry in value] if isinstance(value, list | tuple) else value


def param_cell(value: Value) -> str:
    """Format a param's value for a terminal's table."""
    if value is None:
        return "null"
    return number(value) if isinstance(value, float) else csv_field(value)


def param_cells(name: str, points: Iterable[Params]) -> list[str]:
    """Format a param of several trials for a terminal's table. A trial without the param has an empty cell."""
    return [param_cell(params[name]) if name in params else "" for params in points]


def frame_of(columns: Mapping[str, list[Any]]) -> pd.DataFrame:
    """Return columns as a DataFrame with unchanged values."""
    import pandas as pd

    return pd.DataFrame({name: _series(values) for name, values in columns.items()})


def _series(values: list[Any]) -> pd.Series[Any]:
    """Return a column that keeps every value unchanged: pandas would convert [1, None] to floats."""
    import pandas as pd

    present = [value for value in values if value is not pd.NA]
    kinds = {type(value) for value in present}
    if len(kinds) != 1 or not kinds <= {bool, int, float, str}:
        return pd.Series(values, dtype=object)
    if len(present) == len(values):
        return pd.Series(values)
    dtype = {bool: "boolean", int: "Int64", float: "float64"}.get(kinds.pop())
    return pd.Series([None if value is pd.NA else value for value in values], dtype=dtype)
