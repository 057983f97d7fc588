"""Differences between two sweeps, as JSON."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from hpsearch.config.checks import KeyPath, key_text
from hpsearch.config.settings import settings_fields
from hpsearch.sweep.parallel import STRATEGY
from hpsearch.sweep.parts import SECTIONS
from hpsearch.trial import Value

_ABSENT = object()

_HOW = {
    name: {key for key, field in settings_fields(section).items() if field.how} for name, section in SECTIONS.items()
}
"""Section to the keys that only affect how a sweep runs."""


def difference(stored: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the differences between a study's sweep and a new one: `"seed: 0 in the study, 1 here"`.

    Settings of how it runs, and the source, are not compared.
    """
    lines = [f"{key}: {before} in the study, {after} here" for key, (before, after) in differing(stored, new).items()]
    if lines:
        return lines
    # The order of parameters determines the order of a grid, and of columns.
    orders = [
        ", ".join(".".join(item["path"]) for item in sweep["parameters"] if "path" in item) for sweep in (stored, new)
    ]
    return [] if orders[0] == orders[1] else [f"parameters: {orders[0]} in the study, {orders[1]} here"]


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the keys in which two sweeps differ, with both values as text; compares the same keys as `difference`."""
    width_counts = _depends_on_width(one) or _depends_on_width(other)
    first, second = (_leaves(sweep, width_counts) for sweep in (one, other))
    pairs = {key: (first.get(key, _ABSENT), second.get(key, _ABSENT)) for key in [*first, *second]}
    return {key_text(key): (_text(a), _text(b)) for key, (a, b) in pairs.items() if not _equal(a, b)}


def _leaves(sweep: Mapping[str, Any], width_counts: bool) -> dict[KeyPath, Value]:
    """Return the compared values by key path. The keys of a parameter are not flattened further.

    Args:
        sweep: The sweep as JSON.
        width_counts: Whether the number of workers of a trial is compared.
    """
    out: dict[KeyPath, Value] = {}
    for section, content in sweep.items():
        if section in ("parameters", "points_to_try", "observers", "on_end", "source", "auto_reason"):
            continue
        how = _how(section, content, width_counts)
        leaves: dict[KeyPath, Value] = {(section,): content}
        if isinstance(content, Mapping):
            leaves = {(section, key): value for key, value in content.items()}
        elif section == "metric" and content is not None:
            leaves = {(section, index, key): v for index, goal in enumerate(content) for key, v in goal.items()}
        out |= {path: value for path, value in leaves.items() if value is not None and path[-1] not in how}
    constraints = [item["constraint"] for item in sweep["parameters"] if "constraint" in item]
    if constraints:
        out[("constraints",)] = constraints
    for item in sweep["parameters"]:
        if "path" in item:
            name = ".".join(item["path"])
            # A dot in a name and a group have the same flat name, and different nested params.
            path = {"path": item["path"]} if item["path"] != name.split(".") else {}
            config = {key: value for key, value in item.items() if key != "path"} | path
            out |= {("parameters", name, key): value for key, value in config.items()}
    for index, point in enumerate(sweep["points_to_try"]):
        key: KeyPath = ("points_to_try", index)
        out |= {(*key, name): value for name, value in point.items()} if point else {key: {}}
    return out


def _how(section: str, content: Any, width_counts: bool) -> Collection[str]:
    """Return the keys of a section that are not compared, as they only affect how a sweep runs."""
    how = _HOW.get(section, set())
    if section != "resources":
        return how
    # With fuse: rounding, results depend on the number of trials in a computation.
    rounded = {"trials_per_worker"} if content.get("fuse") == "rounding" else set()
    return how - rounded - ({"workers_per_trial"} if width_counts else set())


def _depends_on_width(sweep: Mapping[str, Any]) -> bool:
    """Return whether results may depend on the number of workers of a trial: with strategies other than allreduce."""
    strategy = (sweep.get("parallel") or {}).get("strategy", "allreduce")
    return strategy != "allreduce" or STRATEGY in _names(sweep["parameters"])


def _names(parameters: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the flat names of parameters at the top level and in groups."""
    for item in parameters:
        if "path" in item:
            name = ".".join(item["path"])
            yield name
            yield from (f"{name}.{inner}" for inner in _names(item.get("parameters", ())))


def _equal(value: object, other: object) -> bool:
    # As JSON, since 1 == 1.0 == True in Python, but they are different values of a parameter.
    if value is _ABSENT or other is _ABSENT:
        return value is other
    return json.dumps(value, sort_keys=True) == json.dumps(other, sort_keys=True)


def _text(value: object) -> str:
    return "not given" if value is _ABSENT else repr(value)
