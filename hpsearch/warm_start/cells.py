"""Parsing of parameter and metric values from the cells of tables and from other programs."""

from __future__ import annotations

import json
import math
from contextlib import suppress

from hpsearch.config.checks import InvalidKey
from hpsearch.space import Categorical, Constant, Distribution
from hpsearch.space.distribution import Numeric
from hpsearch.tables.formats import csv_field
from hpsearch.trial import Value

_MOST_DIGITS = 400
"""Longest text that is parsed as a number, as Python can't parse integers with thousands of digits."""


def param(cell: object, distribution: Distribution, name: str, is_text: bool) -> Value:
    """Return a parameter's value from a cell, without checking the value against the space.

    Args:
        cell: The cell. It isn't empty, unless null is a choice.
        distribution: The parameter's distribution.
        name: The parameter's name.
        is_text: Whether cells are always text, as in a CSV file. Otherwise cells are values, but lists and mappings may
            be JSON.

    Raises:
        InvalidKey: The text matches several choices.
    """
    if is_empty(cell):
        return _nothing(cell, distribution, name, is_text)
    choices = _choices(distribution)
    if choices is None:
        value = _number(cell) if isinstance(cell, str) and is_text else _plain(cell)
        # Columns of one type, as in pandas, turn integers into floats if a value is missing.
        is_whole = isinstance(distribution, Numeric) and distribution.is_integer and isinstance(value, float)
        return int(value) if is_whole and value.is_integer() else value  # type: ignore[attr-defined, call-overload]
    if not isinstance(cell, str):
        return cell
    if not is_text and _is_choice(cell, distribution):
        return cell
    return _choice(cell, choices, name)


def allows_empty(distribution: Distribution) -> bool:
    """Return whether an empty cell is a valid value: null, or an empty text."""
    return any(_is_choice(value, distribution) for value in (None, ""))


def is_empty(cell: object) -> bool:
    """Return whether a cell is empty: None, an empty text, or pandas' NaN and NA."""
    if cell is None or (isinstance(cell, str) and not cell):
        return True
    return type(cell).__name__ in ("NAType", "NaTType") or (isinstance(cell, float) and math.isnan(cell))


def metric(cell: object, name: str) -> float | None:
    """Return the metric's value; None if the cell is empty. The text `nan` means that NaN was reported.

    Raises:
        InvalidKey: The cell isn't a number.
    """
    if is_empty(cell):
        return None
    value = _number(cell) if isinstance(cell, str) else _plain(cell)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidKey((name,), f"must be a number, got {value!r:.60}")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def iteration(cell: object, name: str) -> int | None:
    """Return an iteration; None if the cell is empty.

    Raises:
        InvalidKey: The cell isn't a whole number of at least 1.
    """
    value = metric(cell, name)
    if value is None:
        return None
    if not math.isfinite(value) or value != int(value) or value < 1:
        raise InvalidKey((name,), f"must be a whole number of at least 1, got {cell!r:.60}")
    return int(value)


def same_value(value: Value, other: Value) -> bool:
    """Return whether two values are equal and of the same type: True isn't 1, and 1 isn't 1.0."""
    return json.dumps(value, sort_keys=True) == json.dumps(other, sort_keys=True)


def _nothing(cell: object, distribution: Distribution, name: str, is_text: bool) -> Value:
    """Return the value that an empty cell stands for."""
    has_null, has_text = (_is_choice(value, distribution) for value in (None, ""))
    if has_null and has_text and is_text:
        raise InvalidKey((name,), 'must be told apart in a table, but an empty cell stands for null and ""')
    return "" if has_text and (isinstance(cell, str) or not has_null) else None


def _plain(cell: object) -> object:
    return cell.tolist() if type(cell).__module__ == "numpy" and hasattr(cell, "tolist") else cell


def _number(text: str) -> object:
    """Parse a number; return the text unchanged if it isn't a number."""
    text = text.strip()
    if len(text) <= _MOST_DIGITS and text.isascii() and "_" not in text:  # Python accepts `_` in numbers
        for kind in (int, float):
            with suppress(ValueError):
                return kind(text)
    return text


def _choices(distribution: Distribution) -> list[Value] | None:
    match distribution:
        case Categorical(values=values):
            return list(values)
        case Constant(value=value):
            return [value]
    return None


def _is_choice(value: Value, distribution: Distribution) -> bool:
    return any(same_value(value, choice) for choice in _choices(distribution) or ())


def _choice(text: str, choices: list[Value], name: str) -> Value:
    """Return the choice that matches a text, as our own tables format it, or otherwise as JSON."""
    written = {json.dumps(choice, sort_keys=True): choice for choice in choices if csv_field(choice) == text}
    if len(written) > 1:
        among = " and ".join(written)
        raise InvalidKey((name,), f"must be told apart in a table, but {text!r:.60} stands for {among}")
    if written:
        return next(iter(written.values()))
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
