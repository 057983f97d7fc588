"""Former keywords of `search`, which it takes with a `DeprecationWarning` that shows the new call."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from hpsearch.config.checks import nearest
from hpsearch.config.settings import settings_fields
from hpsearch.errors import SweepError
from hpsearch.sweep.parts import Limits, Resources
from hpsearch.sweep.wandb import HINTS

__all__ = ["MOVED", "with_old_keywords"]

MOVED: Mapping[str, tuple[str, ...]] = {
    **{name: (name,) for name in ("name", "constraints", "outcome_constraints", "points_to_try", "on_end")},
    "sweep": ("parameters",),
    "suggestions": ("search",),
    "goal": ("metric", "goal"),
    "metric_scope": ("metric", "scope"),
    "metric_target": ("metric", "target"),
    "keep_checkpoints": ("checkpoints", "keep"),
    "checkpoint_every": ("checkpoints", "every"),
    **{name: ("resources", name) for name in settings_fields(Resources)},
    **{name: ("limits", name) for name in settings_fields(Limits)},
}
"""Keywords to the keys of a sweep file that they are."""

_WRITTEN = {
    "tensorboard": "observers=[] in place of tensorboard=False",
    "address": "ray.init(address=...) before it, or RAY_ADDRESS in the environment, in place of address",
}
"""Keywords that are no key of a sweep file, to what is written instead."""

_OF_THE_RUN = ("warm_start", "directory", "backend", "callbacks", "progress")
"""Arguments that are no key of a sweep file."""


def with_old_keywords(keys: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """Add old keywords to the arguments that they are a part of, and warn of them.

    Args:
        keys: The arguments of `search` by name; those that are None weren't passed.
        old: All others that were passed.

    Raises:
        SweepError: There is no such keyword, or its value is passed in the new way, too.
    """
    out, new = dict(keys), dict[str, Any]()
    for name, value in old.items():
        if name in _WRITTEN:
            continue
        if name not in MOVED:
            advice = HINTS[""].get(name) or nearest(name, [*keys, *_OF_THE_RUN, *MOVED])
            raise SweepError(f"search: {name} isn't a known argument\n  {advice}")
        (key, *inside) = path = MOVED[name]
        former = out.get(key)
        if key == "metric" and isinstance(former, str):
            former = {"name": former}
        if former is not None and not (inside and isinstance(former, Mapping) and inside[0] not in former):
            raise SweepError(f"search: {name} must not be passed with {key}: write {'.'.join(path)} alone")
        if value is not None:
            out[key] = new[key] = {**(former or {}), inside[0]: value} if inside else value
    if old:
        _warn(old, new, keys)
    return out


def _warn(old: Mapping[str, Any], new: Mapping[str, Any], keys: Mapping[str, Any]) -> None:
    """Warn of the old keywords at the call of `search`."""
    beside = "".join(f", {key!r}: {_shown(value)}" for key, value in new.items() if key not in keys)
    words = [f"{{'parameters': ...{beside}}}" if beside else "..."]
    words += [f"{key}={_shown(value)}" for key, value in new.items() if key in keys]
    ways = [f"search(trainable, {', '.join(words)})"] if new else []
    ways += [way for name, way in _WRITTEN.items() if name in old]
    way = f"write {' and '.join(ways)}" if ways else "leave None out"
    text = f"search: {', '.join(old)} {'is' if len(old) == 1 else 'are'} deprecated; {way}"
    warnings.warn(text, DeprecationWarning, stacklevel=4)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else "..."
