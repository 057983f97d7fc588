"""The sweep that the arguments of `search` describe: they are read as a sweep file is."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpsearch.errors import SweepError
from hpsearch.run.observing import names_of
from hpsearch.space import Space
from hpsearch.sweep.file import sweep_from_mapping, without_wrapper
from hpsearch.sweep.parameters import space_of
from hpsearch.sweep.reader import command_or_line
from hpsearch.sweep.sweep import Sweep
from hpsearch.sweep.table_name import is_table, table_and_task
from hpsearch.sweep.wandb import wandb_notes

__all__ = ["sweep_of_search"]


def sweep_of_search(arguments: Mapping[str, Any], trainable: str | None, folder: str | None, progress: bool) -> Sweep:
    """Return the sweep of a call.

    Args:
        arguments: Keys of a sweep file to their values; None where nothing was passed. `parameters` may be a `Sweep`,
            or a mapping that holds such keys, too.
        trainable: The import path of the trainable; None: the sweep's own.
        folder: The name of the study's directory, if there is one. It is the sweep's name unless a key says another;
            a mapping that is a sweep of its own, with a `method`, has its trainable's.
        progress: Print what means something else than at W&B.

    Raises:
        SweepError: They describe none, or a key has two values.
    """
    own = {key: value for key, value in arguments.items() if value is not None}
    parameters = own.pop("parameters", None)
    if isinstance(parameters, Sweep):
        own.pop("observers", None)
        on_end = own.pop("on_end", None)
        _refuse(own, "dataclasses.replace(sweep, ...)")
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
        _refuse([key for key in own if key in keys and key != "observers"], "{**sweep, ...}")
        parameters = keys["parameters"]
    elif parameters is None or "metric" not in own:
        missing = "parameters" if parameters is None else "metric"
        raise SweepError(
            f"search: {missing} is required: search(train, {{'lr': LogUniform(1e-4, 1.0)}}, "
            "metric={'name': 'accuracy', 'goal': 'maximize'}, ...)"
        )
    else:
        keys = {}
    name = folder if folder is not None and "method" not in keys else _last_name(trainable or "sweep")
    keys = {"method": "random", **keys, **own, "parameters": parameters}
    if isinstance(keys.get("metric"), str):
        keys["metric"] = {"name": keys["metric"]}
    if "observers" in own:
        keys["observers"] = names_of(own["observers"])
    is_python = not isinstance(parameters, Mapping) or any(not isinstance(one, Mapping) for one in parameters.values())
    if not isinstance(parameters, Space) and (is_python or not is_whole):
        keys["parameters"] = space_of(parameters, keys.pop("constraints", ()))
    sweep = sweep_from_mapping(keys, name=name, trainable=trainable)
    for note in wandb_notes(keys) if progress and is_whole else ():
        print(f"note: {note}", file=sys.stderr)
    return sweep


def _refuse(beside: Mapping[str, Any] | list[str], way: str) -> None:
    """Refuse keys that a whole sweep has itself: only one of the two values would count."""
    if beside:
        raise SweepError(
            f"search: {' and '.join(beside)} must not be passed with a whole sweep, which has its own: put it there "
            f"with {way}, or leave it out"
        )


def _last_name(path: str) -> str:
    """Return the name of a trainable, or of a table's file, by its path."""
    return Path(table_and_task(path)[0]).stem if is_table(path) else path.rpartition(":")[2].rpartition(".")[2]
