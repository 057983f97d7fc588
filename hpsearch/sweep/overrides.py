"""`--set KEY=VALUE`: values put in place of what a sweep file says.

What kind a parameter is follows from how its numbers are written, so a new one doesn't change it: put in place of a
float a number is a float, and a range of integers takes only integers.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hpsearch.config.checks import KeyPath, key_text, shown
from hpsearch.errors import SweepError
from hpsearch.sweep.distributions import RANGE_BOUNDS, is_whole_range
from hpsearch.sweep.document import Document, parse_value

__all__ = ["Override", "apply_overrides", "dotted_path"]


_INSIDE = {"parameters": "name", "choice": "branch", "repeat": "key", "chain": "branch", "cell": "branch"}
"""Keys of a parameter that holds others, and what stands inside of them: names of parameters, names of branches, or a
parameter's own keys."""

_BESIDE = ("min", "max", "length", "nodes", "each", "inputs", "when")
"""Keys that stand beside those of a structure."""


@dataclass(frozen=True)
class Override:
    """One `--set`."""

    text: str
    """As given: `KEY=VALUE`."""
    path: KeyPath


def apply_overrides(document: Document, overrides: Sequence[str]) -> list[Override]:
    """Change the document's value in place.

    Raises:
        SweepError: An override isn't `KEY=VALUE`, or its key leads into something that has no keys.
    """
    out = []
    ranges: dict[KeyPath, str] = {}
    for given in overrides:
        prefix = f"{document.name}: --set {given}"
        key, equals, value = given.partition("=")
        if not equals or not all(key.split(".")):
            raise SweepError(f"{prefix}: must be KEY=VALUE, such as early_terminate.max_iter=81")
        path = dotted_path(document.value, key)
        whole = _is_whole_range(document.value, path)
        _put(document, path, parse_value(value, prefix), prefix)
        if whole:
            ranges[path[:-1]] = prefix
        for inside in [known for known in document.marks if known[: len(path)] == path]:
            del document.marks[inside]
        out.append(Override(given, path))
    for path, prefix in ranges.items():
        _check_still_whole(document.value, path, prefix)
    return out


def dotted_path(value: object, key: str | KeyPath) -> KeyPath:
    """Follow a key into a sweep as a file holds it.

    A parameter's name may hold dots itself, and the `parameters` that nest a group may be left out, as the keys of
    structures may: `parameters.optimizer.lr.max` finds `parameters -> optimizer -> parameters -> lr -> max`.
    """
    rest = list(key) if not isinstance(key, str) else _parts(key)
    out: list[str | int] = []
    while rest:
        value, used = _follow(value, rest, out)
        rest = rest[used:]
    return tuple(out)


def _parts(key: str) -> list[str | int]:
    return [int(part) if part.isdecimal() and len(part) < 10 else part for part in key.split(".")]


def _follow(value: object, rest: list[str | int], out: list[str | int]) -> tuple[object, int]:
    """Take one step along a key: append to `out`, give what stands there and how many parts it took."""
    first = rest[0]
    if isinstance(value, list) and isinstance(first, int):
        out.append(first)
        return (value[first] if first < len(value) else None), 1
    if isinstance(value, Mapping):
        for used in range(len(rest), 0, -1):  # the longest name wins: model.lr before model
            name = ".".join(map(str, rest[:used]))
            if name in value:
                out.append(name)
                return value[name], used
        holder = next((key for key in _INSIDE if isinstance(value.get(key), Mapping)), None)
        inside = holder == "parameters" or first not in _BESIDE
        if holder is not None and inside and len(out) > 1 and out[0] == "parameters":
            out.append(holder)
            # Copies and edges have numbers where a file says once what they are.
            return value[holder], int(str(first)[:1].isdecimal())
    out.append(first if isinstance(value, list) else str(first))
    return None, 1


def _put(document: Document, path: KeyPath, value: object, prefix: str) -> None:
    place: Any = document.value
    for depth, part in enumerate(path):
        if isinstance(place, dict):
            former = place.get(part)
        elif isinstance(place, list) and isinstance(part, int) and part < len(place):
            former = place[part]
        else:
            raise SweepError(f"{prefix}: {key_text(path[:depth]) or 'the file'} {_no_keys(place)}")
        if depth == len(path) - 1:
            place[part] = _as_written(former, value, path)
        elif former is None and isinstance(place, dict):
            place[part] = {}
        place = place[part]


def _as_written(former: object, value: object, path: KeyPath) -> object:
    """Give a number that takes the place of a parameter's float as a float."""
    if path[0] == "parameters" and isinstance(former, float) and type(value) is int:
        with suppress(OverflowError):  # a number that no float holds is refused where it is read
            return float(value)
    return value


def _is_whole_range(value: object, path: KeyPath) -> bool:
    """Say whether a key is a bound of what the file has as a range of integers, by its numbers alone."""
    *parameter, key = path
    # A mapping that is itself a value may have a min and a max, too.
    if key not in RANGE_BOUNDS or not _is_parameter(parameter):
        return False
    given = _unnamed_at(value, parameter)
    return {"min", "max"} <= set(given) and is_whole_range(given)


def _is_parameter(path: Sequence[str | int]) -> bool:
    """Say whether a path leads to a parameter, by the keys on its way that hold others."""
    if not path or path[0] != "parameters":
        return False
    expected = "name"
    for part in path[1:]:
        if expected == "key" and part not in _INSIDE:
            return False
        expected = _INSIDE[str(part)] if expected == "key" else "name" if expected == "branch" else "key"
    return expected == "key"


def _check_still_whole(value: object, path: KeyPath, prefix: str) -> None:
    given = _unnamed_at(value, path)
    for key in RANGE_BOUNDS:
        if isinstance(given.get(key), float):
            where = key_text((*path, key))
            raise SweepError(
                f"{prefix}: {where}: must be an integer, as the file has a range of integers here, got {given[key]}\n"
                f"  for a range of floats add --set {shlex.quote(key_text((*path, 'distribution')))}=uniform"
            )


def _unnamed_at(value: object, path: Sequence[str | int]) -> Mapping[str, Any]:
    """Give the parameter at a path if it names no distribution; empty where there is none such."""
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) and value.get("distribution") is None else {}


def _no_keys(place: object) -> str:
    if isinstance(place, list):
        return f"must be followed by a position below {len(place)}"
    return f"must be a mapping, got {shown(place)}"
