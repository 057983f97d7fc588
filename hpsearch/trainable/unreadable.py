"""The error for a state that cannot be read again: names the entry, and what to save instead."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import inspect
import io
import os
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from hpsearch.errors import CheckpointError

__all__ = ["refuse_unreadable"]

_MAX_DEPTH = 50


def refuse_unreadable(state: object, cause: Exception) -> NoReturn:
    """Raise the error for a state that could not be saved and read again.

    Descends into the first entry of each container that cannot be read on its own. This saves every entry on the way,
    but only runs when a checkpoint is refused.

    Raises:
        CheckpointError: Always. Names the entry, such as `state["scaler"]`, its type, and what to do.
    """
    path, entry = _offender("state", state, 0)
    raise CheckpointError(
        f"{path}: {_type_name(entry)} can't be read back with weights_only=True; {_advice(entry)}"
    ) from cause


def _offender(path: str, value: object, depth: int) -> tuple[str, object]:
    for child_path, child in _children(path, value) if depth < _MAX_DEPTH else ():
        if not _is_readable(child):
            return _offender(child_path, child, depth + 1)
    return path, value  # a value, or a container of a refused type whose entries are readable


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
    """Return the public name of a type, without private modules: `sklearn.preprocessing.StandardScaler`."""
    kind = type(entry)
    modules = [part for part in kind.__module__.split(".") if not part.startswith("_")]
    if modules in ([], ["builtins"]):
        return kind.__qualname__
    return ".".join([*modules, kind.__qualname__])


def _advice(entry: object) -> str:
    """Return what to save instead of an entry: a converted form that can be read, if there is one."""
    for form, convert in _forms(entry):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of torch, about memory that is not writable
                if _is_readable(convert(entry)):
                    return f"save {form}"
        except Exception:  # the conversion failed
            continue
    if isinstance(entry, type):
        return "save its name"
    if inspect.isroutine(entry) or isinstance(entry, functools.partial):
        return "save what it computes from, not the function"
    return "save its numbers as tensors or lists, or write a directory"


def _forms(entry: object) -> Iterator[tuple[str, Callable[[Any], object]]]:
    """Yield the possible conversions of an entry by its type: code to show, and a function."""
    import numpy
    import torch

    if isinstance(entry, numpy.ma.MaskedArray):
        yield "value.tolist()", lambda value: value.tolist()  # with None where it is masked
    elif isinstance(entry, numpy.ndarray):
        yield "torch.from_numpy(value)", torch.from_numpy
        yield "torch.from_numpy(value.copy())", lambda value: torch.from_numpy(value.copy())
        if entry.dtype.kind in "mM":
            yield 'torch.from_numpy(value.view("int64"))', lambda value: torch.from_numpy(value.view("int64"))
        yield "value.tolist()", lambda value: value.tolist()
        yield 'torch.from_numpy(value.astype("float64"))', lambda value: torch.from_numpy(value.astype("float64"))
    elif isinstance(entry, numpy.generic):
        yield "value.item()", lambda value: value.item()
        yield "str(value)", str
    elif isinstance(entry, torch.Generator):
        yield "value.get_state()", lambda value: value.get_state()
    elif isinstance(entry, numpy.random.Generator):
        yield "value.bit_generator.state", lambda value: value.bit_generator.state
    elif isinstance(entry, random.Random):
        yield "value.getstate()", lambda value: value.getstate()
    elif isinstance(entry, torch.Tensor):
        yield "value.detach().as_subclass(torch.Tensor)", lambda value: value.detach().as_subclass(torch.Tensor)
    elif isinstance(entry, enum.Enum):
        yield "value.value", lambda value: value.value
    elif isinstance(entry, datetime.date | datetime.time):
        yield "value.isoformat()", lambda value: value.isoformat()
    elif isinstance(entry, os.PathLike | decimal.Decimal | fractions.Fraction):
        yield "str(value)", str
    elif isinstance(entry, Mapping):
        yield "dict(value)", dict
    elif isinstance(entry, tuple):
        yield "tuple(value)", tuple
    elif isinstance(entry, list | collections.deque):
        yield "list(value)", list
    elif dataclasses.is_dataclass(entry) and not isinstance(entry, type):
        yield "dataclasses.asdict(value)", dataclasses.asdict
    elif callable(getattr(entry, "state_dict", None)) and not isinstance(entry, type):
        yield "value.state_dict()", lambda value: value.state_dict()
