"""Detection of forks that train with the optimizer settings of their parent instead of their own parameters."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpsearch.errors import CheckpointError
from hpsearch.trainable.assignment import Assignment
from hpsearch.trainable.checkpoints import read_state

_MAX_DEPTH = 20
_ZIP = b"PK"
"""First bytes of a file that `torch.save` wrote."""


def check_own_settings(state: object, assignment: Assignment) -> None:
    """Check that the optimizers and schedulers of a fork use the fork's own settings in its first checkpoint.

    A setting counts as the parent's if all of these hold:

    - It has the name of a parameter that differs between the fork and its parent.
    - It has the parent's value, both here and in the same entry of the parent's checkpoint.
    - No setting of this name has the fork's value.

    All three are required: a learning rate schedule may pass through the parent's value, and other code may use the
    same constant.

    Args:
        state: What the fork saves: a state, or the path of a directory or file.
        assignment: The segment that saves the state.

    Raises:
        CheckpointError: A setting is the parent's.
    """
    if not assignment.changed or assignment.parent_checkpoint is None:
        return
    settings, before = dict(_settings_of(state)), None
    for name, (theirs, new) in assignment.changed.items():
        candidates = {entry: value for entry, value in settings.items() if _is_named(name, entry[1])}
        if any(_is_close(value, new) for value in candidates.values()):
            continue
        for entry in [entry for entry, value in candidates.items() if _is_close(value, theirs)]:
            if before is None:
                before = dict(_settings_of(read_state(Path(assignment.parent_checkpoint))))
            if _is_close(before.get(entry, math.nan), theirs):
                raise CheckpointError(
                    f"a fork must train with its own {name}, {new:g}, got {theirs:g}, its parent's: load optimizers "
                    f"and schedulers by hpsearch.restore(optimizer, state). {entry[0]} of its checkpoint is as in that "
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
    """Yield the states in the files of a user's checkpoint that torch can read."""
    import torch

    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    for file in files:
        try:
            with file.open("rb") as opened:
                if opened.read(len(_ZIP)) != _ZIP:
                    continue
            name = file.name if file == path else str(file.relative_to(path))
            yield name, torch.load(file, weights_only=True, mmap=True, map_location="cpu")
        except Exception:  # not a file of torch, or not a plain state
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
        elif name in ("initial_lr", "max_lr"):  # a scheduler computes `lr` from it
            yield from _numbers([((f'{path}["{name}"]', "lr"), value)])
        elif isinstance(name, str) and not (name == "lr" and "initial_lr" in group):
            yield from _numbers([((f'{path}["{name}"]', name), value)])


def _numbers(values: Any) -> Iterator[tuple[tuple[str, str], float]]:
    for entry, value in values:
        if isinstance(value, int | float) or (getattr(value, "shape", None) == () and hasattr(value, "item")):
            yield entry, float(value)


def _is_named(parameter: str, setting: str) -> bool:
    """Return whether a parameter has the name of a setting, or ends with it: `optimizer.lr`, `head_lr`."""
    name = f".{parameter.lower()}".replace("-", "_").replace("learning_rate", "lr").replace("beta_", "beta")
    return name.endswith((f".{setting}", f"_{setting}"))


def _is_close(value: float, other: float) -> bool:
    return math.isclose(value, other, rel_tol=1e-6)  # float32 precision
