"""Name the entry of a checkpoint that can't be read back, and what to save in its place."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import NoReturn

from hpsearch.errors import CheckpointError

__all__ = ["refuse_unreadable"]

_MAX_DEPTH = 50


def refuse_unreadable(state: object, cause: Exception) -> NoReturn:
    """Raise the error for a state that couldn't be saved and read back.

    Descends from container to container into the first entry that can't be read back by itself, so it costs a
    save of every entry on the way; it runs only when a checkpoint is refused.

    Raises:
        CheckpointError: Always; names the entry, e.g. `state["scaler"]`, its type, and what to do.
    """
    path, entry = _offender("state", state, 0)
    raise CheckpointError(
        f"{path}: {_type_name(entry)} can't be read back with weights_only=True; {_advice(entry)}"
    ) from cause


def _offender(path: str, value: object, depth: int) -> tuple[str, object]:
    for child_path, child in _children(path, value) if depth < _MAX_DEPTH else ():
        if not _is_readable(child):
            return _offender(child_path, child, depth + 1)
    return path, value  # a plain value, or a container of readable entries that is itself of a refused type


def _children(path: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield f"a key of {path}", key
            yield f"{path}[{_quoted(key)}]", entry
    elif isinstance(value, (list, tuple)):
        for index, entry in enumerate(value):
            yield f"{path}[{index}]", entry
    elif isinstance(value, (set, frozenset)):
        for entry in value:
            yield f"an entry of {path}", entry


def _is_readable(value: object) -> bool:
    import torch

    if value is None or type(value) in (bool, int, float, str, torch.Tensor):
        return True
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
        buffer.seek(0)
        torch.load(buffer, weights_only=True)
    except Exception:  # whatever the object's own reduction raises
        return False
    return True


def _quoted(key: object) -> str:
    return f'"{key}"' if isinstance(key, str) else repr(key)


def _type_name(entry: object) -> str:
    """Give the name as users import it: `sklearn.preprocessing.StandardScaler`, without private modules."""
    kind = type(entry)
    modules = [part for part in kind.__module__.split(".") if not part.startswith("_")]
    if modules in ([], ["builtins"]):
        return kind.__qualname__
    return ".".join([*modules, kind.__qualname__])


def _advice(entry: object) -> str:
    import numpy

    if isinstance(entry, numpy.ndarray):
        return "save torch.from_numpy(array)"
    if isinstance(entry, numpy.generic):
        return "save its plain value, from .item()"
    if callable(entry):
        return "save what it computes from, not the function"
    return "save its numbers as tensors or lists, or write a directory"
