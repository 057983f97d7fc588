"""Find a parent's settings in what a fork saves first: it was trained with these, and not with its own parameters."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpsearch.errors import CheckpointError
from hpsearch.trainable.assignment import Assignment
from hpsearch.trainable.checkpoints import read_state

__all__ = ["check_own_settings"]

_MAX_DEPTH = 20
_STORED = (".pt", ".pth", ".ckpt", ".bin")
"""Ends of the names of files that torch may have saved."""


def check_own_settings(state: object, assignment: Assignment) -> None:
    """See that the optimizers and schedulers that a fork saves in its first segment have the fork's own settings.

    A setting is taken for the parent's where it is called like a parameter that the two trials have different values
    of, has the parent's value, had it in the parent's checkpoint at the same place, and no setting that is called so
    has the fork's value. A schedule may come by the parent's value, and other code may have the same constant.

    Args:
        state: What is saved: a state, or the path of a directory or file.
        assignment: The segment that saves it.

    Raises:
        CheckpointError: A setting is the parent's.
    """
    if not assignment.changed or assignment.parent_checkpoint is None:
        return
    settings, before = dict(_settings_of(state)), None
    for name, (theirs, own) in assignment.changed.items():
        called_so = {place: value for place, value in settings.items() if _is_called(name, place[1])}
        if any(_is(value, own) for value in called_so.values()):
            continue
        for place in [place for place, value in called_so.items() if _is(value, theirs)]:
            if before is None:
                before = dict(_settings_of(read_state(Path(assignment.parent_checkpoint))))
            if _is(before.get(place, math.nan), theirs):
                raise CheckpointError(
                    f"a fork must train with its own {name}, {own:g}, got {theirs:g}, its parent's: load optimizers "
                    f"and schedulers by hpsearch.restore(optimizer, state). {place[0]} of its checkpoint is as in that "
                    f"of trial {assignment.parent}, where it began, as optimizer.load_state_dict leaves it"
                )


def _settings_of(saved: object) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield the settings of optimizers and schedulers: ((path, name), value)."""
    if isinstance(saved, str | os.PathLike):
        for name, state in _stored_in(Path(saved)):
            yield from _settings_in(name, state, 0)
    else:
        yield from _settings_in("state", saved, 0)


def _stored_in(path: Path) -> Iterator[tuple[str, object]]:
    """Yield the states in the files of a checkpoint that a user wrote, as far as they can be read."""
    import torch

    files = sorted(file for file in path.iterdir() if file.suffix in _STORED) if path.is_dir() else [path]
    for file in files:
        try:
            yield file.name, torch.load(file, weights_only=True, mmap=True, map_location="cpu")
        except Exception:  # it isn't torch's, or holds more than plain states
            continue


def _settings_in(path: str, value: object, depth: int) -> Iterator[tuple[tuple[str, str], float]]:
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, Mapping):
        groups = value.get("param_groups")
        if isinstance(groups, list):
            for number, group in enumerate(groups):
                if isinstance(group, Mapping):
                    yield from _of_group(f'{path}["param_groups"][{number}]', group)
        rates = value.get("base_lrs")
        if isinstance(rates, list):
            yield from _numbers(((f'{path}["base_lrs"][{number}]', "lr"), rate) for number, rate in enumerate(rates))
        for key, entry in value.items():
            if key not in ("param_groups", "base_lrs"):
                name = f'"{key}"' if isinstance(key, str) else repr(key)
                yield from _settings_in(f"{path}[{name}]", entry, depth + 1)
    elif isinstance(value, list | tuple):
        for number, entry in enumerate(value):
            yield from _settings_in(f"{path}[{number}]", entry, depth + 1)


def _of_group(path: str, group: Mapping[Any, Any]) -> Iterator[tuple[tuple[str, str], float]]:
    for name, value in group.items():
        if name == "betas" and isinstance(value, list | tuple):
            yield from _numbers(((f'{path}["betas"][{at}]', f"beta{at + 1}"), beta) for at, beta in enumerate(value))
        elif name in ("initial_lr", "max_lr"):  # a scheduler's, which sets `lr` from it
            yield from _numbers([((f'{path}["{name}"]', "lr"), value)])
        elif isinstance(name, str) and not (name == "lr" and "initial_lr" in group):
            yield from _numbers([((f'{path}["{name}"]', name), value)])


def _numbers(values: Any) -> Iterator[tuple[tuple[str, str], float]]:
    for place, value in values:
        if isinstance(value, int | float) or (getattr(value, "shape", None) == () and hasattr(value, "item")):
            yield place, float(value)


def _is_called(parameter: str, setting: str) -> bool:
    """Say whether a parameter's name is a setting's, as a whole or at its end: `optimizer.lr`, `head_lr`."""
    name = f".{parameter.lower()}".replace("-", "_").replace("learning_rate", "lr").replace("beta_", "beta")
    return name.endswith((f".{setting}", f"_{setting}"))


def _is(value: float, other: float) -> bool:
    return math.isclose(value, other, rel_tol=1e-6)  # as float32 has it
