"""Strict parsing of JSON and numbers: raises an error where Python would silently accept or change a value."""

from __future__ import annotations

import json
import math
import re
from typing import Any

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|[-+]?(?:inf|infinity|nan)", re.ASCII | re.IGNORECASE)


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text. `NaN` and `Infinity` are accepted, since many programs write them.

    Raises:
        ValueError: The text is not JSON, an object has a duplicate key, or a number is too large for a float.
    """
    try:
        return json.loads(text, object_pairs_hook=_object, parse_float=parse_number)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_number(text: str) -> float:
    """Return the number of a text, in the notation of JSON or YAML 1.2, or `inf` or `nan`.

    Raises:
        ValueError: The text is not a number, or the number is too large for a float.
    """
    text = text.strip()
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text!r} isn't one")
    number = float(text)
    if math.isinf(number) and text[-1].isdecimal():
        raise ValueError(f"{text:.40} is beyond what a float holds, 1.8e308")
    return number


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object must name each thing once, but names {twice!r} twice")
    return unique
