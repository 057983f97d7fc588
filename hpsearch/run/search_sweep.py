"""Create a sweep from the arguments of `search`, which are read like a sweep file, and from deprecated keywords."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from hpsearch.config.checks import nearest
from hpsearch.config.import_paths import is_table, table_and_task
from hpsearch.config.settings import settings_fields
from hpsearch.errors import SweepError
from hpsearch.run.observing import names_of
from hpsearch.space import Space
from hpsearch.sweep.file import sweep_from_mapping, without_wrapper
from hpsearch.sweep.parameters import space_of
from hpsearch.sweep.parts import Limits, Resources
from hpsearch.sweep.reader import command_or_line
from hpsearch.sweep.sweep import Sweep
from hpsearch.sweep.wandb import HINTS, wandb_notes


def sweep_of_search(arguments: Mapping[str, Any], trainable: str | None, folder: str | None, progress: bool) -> Sweep:
    """Return the sweep of a call.

    Args:
        arguments: Keys of a sweep file to their values; None where nothing was passed. `parameters` may be a `Sweep`,
            or a mapping that holds such keys, too.
        trainable: The import path of the trainable; None: the sweep's own.
        folder: The name of the study's directory, if there is one. It is the sweep's name unless a key says another;
            a mapping that is a sweep of its own, with a `method`, has its trainable's.
        progress: Whether to print notes on keys with another meaning than in W&B.

    Raises:
        SweepError: They describe none, or a key has two values.
    """
    options = {key: value for key, value in arguments.items() if value is not None}
    parameters = options.pop("parameters", None)
    if isinstance(parameters, Sweep):
        options.pop("observers", None)
        on_end = options.pop("on_end", None)
        _refuse(options, "dataclasses.replace(sweep, ...)")
        return parameters if on_end is None else replace(parameters, on_end=command_or_line(on_end, ("on_end",)))
    if isinstance(parameters, str | Path):
        raise SweepError(
            "search: parameters must be a mapping, a Space, a Sweep, or what a sweep file holds, "
            f"got {parameters!r}: read a file with load_sweep"
        )
    keys = without_wrapper(parameters) if isinstance(parameters, Mapping) else {}
    is_whole = isinstance(keys.get("parameters"), Mapping | Space)
    if is_whole:
        keys = {key: value for key, value in keys.items() if value is not None and key not in ("program", "command")}
        _refuse([key for key in options if key in keys and key != "observers"], "{**sweep, ...}")
        parameters = keys["parameters"]
    elif parameters is None or "metric" not in options:
        missing = "parameters" if parameters is None else "metric"
        raise SweepError(
            f"search: {missing} is required: search(train, {{'lr': LogUniform(1e-4, 1.0)}}, "
            "metric={'name': 'accuracy', 'goal': 'maximize'}, ...)"
        )
    else:
        keys = {}
    name = folder if folder is not None and "method" not in keys else _last_name(trainable or "sweep")
    keys = {"method": "random", **keys, **options, "parameters": parameters}
    if isinstance(keys.get("metric"), str):
        keys["metric"] = {"name": keys["metric"]}
    if "observers" in options:
        keys["observers"] = names_of(options["observers"])
    is_yaml = isinstance(parameters, Mapping) and all(isinstance(value, Mapping) for value in parameters.values())
    if not isinstance(parameters, Space) and not (is_yaml and is_whole):
        keys["parameters"] = space_of(parameters, keys.pop("constraints", ()))
    sweep = sweep_from_mapping(keys, name=name, trainable=trainable)
    for note in wandb_notes(keys) if progress and is_whole else ():
        print(f"note: {note}", file=sys.stderr)
    return sweep


def _refuse(beside: Mapping[str, Any] | list[str], way: str) -> None:
    """Refuse keys in addition to a whole sweep, which already defines them."""
    if beside:
        raise SweepError(
            f"search: {' and '.join(beside)} must not be passed with a whole sweep, which has its own: put it there "
            f"with {way}, or leave it out"
        )


def _last_name(path: str) -> str:
    """Return the name of a trainable, or of a table's file, by its path."""
    return Path(table_and_task(path)[0]).stem if is_table(path) else path.rpartition(":")[2].rpartition(".")[2]


MOVED: Mapping[str, tuple[str, ...]] = {
    **{name: (name,) for name in ("name", "constraints", "outcome_constraints", "points_to_try", "on_end", "scaling")},
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
"""Deprecated keywords to the keys of a sweep file that replace them."""

_WRITTEN = {
    "tensorboard": "observers=[] in place of tensorboard=False",
    "address": "ray.init(address=...) before it, or RAY_ADDRESS in the environment, in place of address",
}
"""Deprecated keywords without a key of a sweep file, to their replacements."""

_OTHERS = {
    "search": ("warm_start", "directory", "backend", "callbacks", "progress"),
    "rerun": ("top", "seeds", "iterations", "trainable", "directory", "backend", "observers", "progress"),
}
"""Arguments of a call that aren't among those that old keywords are a part of."""


def with_old_keywords(
    keys: Mapping[str, Any], old: Mapping[str, Any], call: Literal["search", "rerun"] = "search"
) -> dict[str, Any]:
    """Add old keywords to the arguments that they are a part of, and warn of them.

    Args:
        keys: The arguments that old keywords may be a part of, by name; those that are None weren't passed.
        old: All others that were passed.
        call: The function that the user called.

    Raises:
        SweepError: There is no such keyword, or its value is passed in the new way, too.
    """
    out, new = dict(keys), dict[str, Any]()
    for name, value in old.items():
        if name in _WRITTEN:
            continue
        if name not in MOVED or (call == "rerun" and name != "workers"):
            advice = HINTS[""].get(name) or nearest(name, [*keys, *_OTHERS[call], *MOVED])
            raise SweepError(f"{call}: {name} isn't a known argument\n  {advice}")
        (key, *inside) = path = MOVED[name]
        former = out.get(key)
        if key == "metric" and isinstance(former, str):
            former = {"name": former}
        if former is not None and not (inside and isinstance(former, Mapping) and inside[0] not in former):
            raise SweepError(f"{call}: {name} must not be passed with {key}: write {'.'.join(path)} alone")
        if value is not None:
            out[key] = new[key] = {**(former or {}), inside[0]: value} if inside else value
    if old:
        _warn(old, new, keys, call)
    return out


def _warn(old: Mapping[str, Any], new: Mapping[str, Any], keys: Mapping[str, Any], call: str) -> None:
    """Warn about deprecated keywords; the warning points to the user's call of `search` or `rerun`."""
    beside = "".join(f", {key!r}: {_shown(value)}" for key, value in new.items() if key not in keys)
    parts = [f"{{'parameters': ...{beside}}}" if beside else "..."]
    parts += [f"{key}={_shown(value)}" for key, value in new.items() if key in keys]
    first = "trainable" if call == "search" else "study"
    ways = [f"{call}({first}, {', '.join(parts)})"] if new else []
    ways += [way for name, way in _WRITTEN.items() if name in old]
    way = f"write {' and '.join(ways)}" if ways else "leave None out"
    text = f"{call}: {', '.join(old)} {'is' if len(old) == 1 else 'are'} deprecated; {way}"
    warnings.warn(text, DeprecationWarning, stacklevel=4)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else "..."
