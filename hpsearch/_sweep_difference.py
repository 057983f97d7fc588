"""What makes two sweeps, given as JSON, different ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpsearch._sweep_checks import KeyPath, key_text
from hpsearch.trial import Value

__all__ = ["difference"]

_ABSENT = object()

_WORKERS = ("workers", "workers_per_trial", "max_workers_per_trial", "elastic", "fresh_process")


def difference(stored: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """List what differs between a study's sweep and a new one: `"seed: 0 in the study, 1 here"`.

    Workers, limits and the source don't count: they are about how it is run, not about what.
    """
    there, here = _leaves(stored), _leaves(new)
    pairs = {key: (there.get(key, _ABSENT), here.get(key, _ABSENT)) for key in [*there, *here]}
    lines = [
        f"{key_text(key)}: {_said(one)} in the study, {_said(other)} here"
        for key, (one, other) in pairs.items()
        if not _same(one, other)
    ]
    if lines:
        return lines
    # The order of parameters decides what a grid tries when, and which draw goes to which parameter.
    orders = [", ".join(".".join(item["path"]) for item in sweep["parameters"]) for sweep in (stored, new)]
    return [] if orders[0] == orders[1] else [f"parameters: {orders[0]} in the study, {orders[1]} here"]


def _leaves(sweep: Mapping[str, Any]) -> dict[KeyPath, Value]:
    """Flatten what counts to key paths and values."""
    counted = {key: value for key, value in sweep.items() if key not in ("limits", "source")}
    counted["resources"] = {key: value for key, value in sweep["resources"].items() if key not in _WORKERS}
    counted["parameters"] = {
        ".".join(item["path"]): {key: value for key, value in item.items() if key != "path"}
        for item in sweep["parameters"]
    }
    counted["points_to_try"] = dict(enumerate(sweep["points_to_try"]))
    out: dict[KeyPath, Value] = {}
    _flatten(counted, (), out)
    return out


def _flatten(value: Value, path: KeyPath, out: dict[KeyPath, Value]) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            _flatten(item, (*path, key), out)
    elif value is not None:
        out[path] = value


def _same(one: object, other: object) -> bool:
    # 1 == 1.0 == True in Python; as a parameter's value they are three.
    return repr(one) == repr(other)


def _said(value: object) -> str:
    return "not given" if value is _ABSENT else repr(value)
