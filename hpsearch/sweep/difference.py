"""What makes two sweeps, given as JSON, different ones."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from hpsearch.config.checks import KeyPath, key_text
from hpsearch.config.settings import settings_fields
from hpsearch.sweep.parallel import STRATEGY
from hpsearch.sweep.parts import SECTIONS
from hpsearch.trial import Value

__all__ = ["difference", "differing"]

_ABSENT = object()

_HOW = {
    name: {key for key, field in settings_fields(section).items() if field.how} for name, section in SECTIONS.items()
}
"""By section, the keys that say how a sweep is run."""


def difference(stored: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """List what differs between a study's sweep and a new one: `"seed: 0 in the study, 1 here"`.

    What says how it is run, and the source, don't count.
    """
    lines = [f"{key}: {one} in the study, {other} here" for key, (one, other) in differing(stored, new).items()]
    places = [
        {".".join(item["path"]): item["path"] for item in sweep["parameters"] if "path" in item}
        for sweep in (stored, new)
    ]
    lines += [
        f"parameters.{name}: {_placed(path)} in the study, {_placed(places[1][name])} here"
        for name, path in places[0].items()
        if name in places[1] and places[1][name] != path
    ]
    if lines:
        return lines
    # The order of parameters decides what a grid tries when, and how the table's columns stand.
    orders = [", ".join(names) for names in places]
    return [] if orders[0] == orders[1] else [f"parameters: {orders[0]} in the study, {orders[1]} here"]


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Give the keys that two sweeps differ in, with what each has there, in words; what counts as in `difference`."""
    width_counts = _trains_as_wide_as_it_is(one) or _trains_as_wide_as_it_is(other)
    there, here = (_leaves(sweep, width_counts) for sweep in (one, other))
    pairs = {key: (there.get(key, _ABSENT), here.get(key, _ABSENT)) for key in [*there, *here]}
    return {
        key_text(key): (_said(left), _said(right)) for key, (left, right) in pairs.items() if not _same(left, right)
    }


def _leaves(sweep: Mapping[str, Any], width_counts: bool) -> dict[KeyPath, Value]:
    """Flatten what counts to key paths and values; what a parameter may be is a value, however deep.

    Args:
        sweep: As JSON.
        width_counts: The number of a trial's workers is among it.
    """
    out: dict[KeyPath, Value] = {}
    for section, given in sweep.items():
        if section in ("parameters", "points_to_try", "observers", "on_end", "source"):
            continue
        how = _how(section, given, width_counts)
        leaves: dict[KeyPath, Value] = {(section,): given}
        if isinstance(given, Mapping):
            leaves = {(section, key): value for key, value in given.items()}
        elif section == "metric" and given is not None:
            leaves = {(section, place, key): v for place, one in enumerate(given) for key, v in one.items()}
        out |= {path: value for path, value in leaves.items() if value is not None and path[-1] not in how}
    constraints = [item["constraint"] for item in sweep["parameters"] if "constraint" in item]
    if constraints:
        out[("constraints",)] = constraints
    for item in sweep["parameters"]:
        if "path" in item:
            name = ".".join(item["path"])
            out |= {("parameters", name, key): value for key, value in item.items() if key != "path"}
    for place, point in enumerate(sweep["points_to_try"]):
        key: KeyPath = ("points_to_try", place)
        out |= {(*key, name): value for name, value in point.items()} if point else {key: {}}
    return out


def _how(section: str, given: Any, width_counts: bool) -> Collection[str]:
    """Give the keys of a section that say how a sweep is run."""
    how = _HOW.get(section, set())
    if section != "resources":
        return how
    # Computations of so many trials round as so many do.
    rounded = {"trials_per_worker"} if given.get("fuse") == "rounding" else set()
    return how - rounded - ({"workers_per_trial"} if width_counts else set())


def _trains_as_wide_as_it_is(sweep: Mapping[str, Any]) -> bool:
    """Say whether trials may train by another strategy than allreduce: on more workers they are other trainings."""
    named = (sweep.get("parallel") or {}).get("strategy", "allreduce")
    return named != "allreduce" or STRATEGY in _names(sweep["parameters"])


def _names(parameters: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Give the flat names at the top, and in groups there."""
    for item in parameters:
        if "path" in item:
            name = ".".join(item["path"])
            yield name
            yield from (f"{name}.{inner}" for inner in _names(item.get("parameters", ())))


def _same(one: object, other: object) -> bool:
    # 1 == 1.0 == True in Python; as a parameter's value they are three.
    if one is _ABSENT or other is _ABSENT:
        return one is other
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _placed(path: Sequence[str]) -> str:
    *groups, name = path
    return f"{name} in the group {'.'.join(groups)}" if groups else f"the name {name}"


def _said(value: object) -> str:
    return "not given" if value is _ABSENT else repr(value)
