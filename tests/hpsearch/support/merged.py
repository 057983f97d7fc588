"""Arguments of `search` from several mappings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SECTIONS = ("metric", "resources", "limits", "checkpoints")
_BESIDE_PARAMETERS = ("name", "constraints", "outcome_constraints", "points_to_try", "on_end")


def merged(*calls: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments in which a later mapping wins, key by key inside of sections.

    Keys that are no argument of `search`, such as `points_to_try`, are put beside the parameters.
    """
    out: dict[str, Any] = {}
    for key, value in (item for call in calls for item in call.items()):
        former = {"name": out[key]} if key == "metric" and isinstance(out.get(key), str) else out.get(key)
        both = key in _SECTIONS and isinstance(value, Mapping) and isinstance(former, Mapping)
        out[key] = {**former, **value} if both and former is not None else value
    if "parameters" in out and (beside := {key: out.pop(key) for key in _BESIDE_PARAMETERS if key in out}):
        given = out["parameters"]
        out["parameters"] = {**(given if "parameters" in given else {"parameters": given}), **beside}
    return out
