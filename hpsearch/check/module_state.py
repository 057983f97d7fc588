"""Values of the user's modules, which one trial may leave changed for the next one."""

from __future__ import annotations

import inspect
import pickle
import random
import sys
import types
import warnings
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

from hpsearch.trainable.trace import digest
from hpsearch.worker.own_files import is_own

ModuleState = Mapping[str, Mapping[str, tuple[str, str]]]
"""(digest, short text) of values by name, such as `train.CACHE`, by module."""

_DEEPEST = 6
_LONGEST = 60

_NOT_THE_USERS = sys.stdlib_module_names - {"__main__", "builtins", "collections", "types", "argparse"} | {"hpsearch"}
"""Packages whose objects aren't inspected, as they have caches: for example a logger's enabled levels."""


def module_state(package: str) -> ModuleState:
    """Return the plain values in the user's modules, classes and functions.

    Plain values are numbers, strings, containers of these, tensors, arrays, random generators, the sizes of `functools`
    caches and the attributes of objects. Unlike the values that a sweep checks between two segments these can be
    compared across processes; all tensors are read.

    Args:
        package: The top-level package of the trainable, which may be installed.
    """
    state: dict[str, dict[str, tuple[str, str]]] = {}
    for module_name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and is_own(module_name, path, package):
            state[module_name] = {}
            for name, value in _values(module, module_name):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of deprecated objects, when their type is inspected
                    text = _text(value, 0)
                shown = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
                hashed = blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()
                state[module_name][name] = (hashed, shown)
    return state


def changes(before: ModuleState, after: ModuleState) -> Iterator[tuple[str, str, str]]:
    """Yield the names of values that differ, with both texts; `-` for a missing value.

    Modules that are loaded in only one of the two states are skipped.
    """
    absent = ("", "-")
    for module in sorted(before.keys() & after.keys()):
        old, new = before[module], after[module]
        for name in sorted(old.keys() | new.keys()):
            first, second = old.get(name, absent), new.get(name, absent)
            if first[0] != second[0]:
                yield name, first[1], second[1]


def _values(owner: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the values that a module or class of the user defines itself."""
    for name, value in list(vars(owner).items()):
        if name.startswith("__"):
            continue
        full, module = f"{prefix}.{name}", getattr(value, "__module__", None)
        mine = module == (owner.__name__ if isinstance(owner, types.ModuleType) else owner.__module__)
        if isinstance(value, types.ModuleType):
            continue
        if callable(size := getattr(value, "cache_info", None)):
            yield full, f"{size().currsize} cached"
        elif isinstance(value, type):
            if mine and value is not owner:
                yield from _values(value, full)
        elif isinstance(value, types.FunctionType):
            if mine:
                yield from _of_function(value, full)
        else:
            yield full, value


def _of_function(function: types.FunctionType, name: str) -> Iterator[tuple[str, Any]]:
    """Return the defaults of a function's parameters, and its attributes."""
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is not inspect.Parameter.empty and parameter.default is not None:
            yield f"{name}({parameter.name})", parameter.default
    for attribute, value in vars(function).items():
        if attribute != "__wrapped__":
            yield f"{name}.{attribute}", value


def _text(value: Any, depth: int) -> str:
    """Return a digest of a value; for a value that isn't plain, of its type."""
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return repr(value)
    if depth == _DEEPEST:
        return "..."
    kind = type(value).__name__
    if (state := _library_state(value)) is not None:
        return f"{kind} {state}"
    if isinstance(value, types.ModuleType) or type(value).__module__.partition(".")[0] in _NOT_THE_USERS:
        return kind
    if isinstance(value, Mapping):
        items = [f"{_text(key, depth + 1)}: {_text(item, depth + 1)}" for key, item in list(value.items())]
        return "{" + ", ".join(items) + "}"
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [_text(item, depth + 1) for item in list(value)]
        return f"[{', '.join(sorted(items) if isinstance(value, (set, frozenset)) else items)}]"
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict) and not callable(value):
        return f"{kind}({', '.join(f'{name}={_text(item, depth + 1)}' for name, item in list(attributes.items()))})"
    return kind


def _library_state(value: Any) -> str | None:
    """Return a digest of a tensor, a module, an array or a random generator; None for other types."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        return digest([value])
    if torch is not None and isinstance(value, torch.Generator):
        return digest([value.get_state()])
    if torch is not None and isinstance(value, torch.nn.Module):
        return digest([*value.parameters(), *value.buffers()])
    if numpy is not None and isinstance(value, numpy.ndarray):
        return digest([value.tolist()]) if value.dtype.hasobject else digest([value.tobytes()])
    if (isinstance(value, random.Random) and not isinstance(value, random.SystemRandom)) or (
        numpy is not None and isinstance(value, numpy.random.Generator | numpy.random.RandomState)
    ):
        return digest([pickle.dumps(value)])
    return None
