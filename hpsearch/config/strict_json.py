"""JSON and numbers that people and programs hand us: what Python would bend in silence is refused."""

from __future__ import annotations

import json
import math
import re
from typing import Any

__all__ = ["parse_json", "parse_number"]

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|[-+]?(?:inf|infinity|nan)", re.ASCII | re.IGNORECASE)


def parse_json(text: str | bytes) -> Any:
    """Read JSON, with the `NaN` and `Infinity` that many write.

    Raises:
        ValueError: It isn't JSON, an object names something twice, or a number is beyond what a float holds.
    """
    try:
        return json.loads(text, object_pairs_hook=_object, parse_float=parse_number)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_number(text: str) -> float:
    """Read a number as JSON or YAML 1.2 has it, `inf` and `nan`.

    Raises:
        ValueError: It is none, or beyond what a float holds.
    """
    text = text.strip()
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text!r} isn't one")
    number = float(text)
    if math.isinf(number) and text[-1].isdecimal():
        raise ValueError(f"{text:.40} is beyond what a float holds, 1.8e308")
    return number


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object must name each thing once, but names {twice!r} twice")
    return made
