"""Importing and validation of trainables."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from hpsearch.config.import_paths import import_object
from hpsearch.errors import TrainableError
from hpsearch.trainable.current import mark_worker

Trainable = Callable[..., Any]
"""A function of the trial, or a class with `__init__(trial)` and `step()`; also as a `functools.partial`."""


def unwrapped(target: Any) -> Any:
    """Return the function or class that a `functools.partial` calls; return other values unchanged."""
    while isinstance(target, functools.partial):
        target = target.func
    return target


def class_of(target: Any) -> type | None:
    """Return the class of a trainable, or None if it is a function."""
    target = unwrapped(target)
    return target if inspect.isclass(target) else None


def resolve_trainable(spec: str | Trainable, search_path: Sequence[str] = ()) -> Trainable:
    """Return the trainable of an import path, or the function or class itself, after checking its signature.

    Args:
        spec: `package.module:name`, or a function or class.
        search_path: Folders that are prepended to `sys.path`. They stay there, because the trainable may import later.

    Raises:
        TrainableError: The path cannot be imported, or the object is not a trainable.
    """
    mark_worker()
    if isinstance(spec, str):
        named, target = spec, import_object(spec, "trainable", TrainableError, search_path)
    else:
        named, target = getattr(unwrapped(spec), "__qualname__", repr(spec)), spec
    if getattr(target, "simulated", False):
        raise TrainableError(
            f"{named} is a simulation, which trains nothing: run it with --backend simulated "
            "(search(..., backend='simulated'))"
        )
    if not callable(target):
        raise TrainableError(
            f"`trainable` must be a function or class, but {named} is a {type(target).__name__}: name a "
            "function that takes the trial"
        )
    if inspect.iscoroutinefunction(target) or inspect.isgeneratorfunction(target):
        raise TrainableError(f"`trainable` must be a plain function, but {named} is async or yields: call it in one")
    trainable: Trainable = target
    try:
        inspect.signature(trainable).bind(None)
    except TypeError as error:
        signature = f"{named}(self, trial)" if class_of(target) else f"{named}(trial)"
        raise TrainableError(f"`trainable` is called as {signature}, but {named} doesn't match: {error}") from error
    except ValueError:
        pass  # a builtin without a signature
    if (kind := class_of(target)) is not None:
        _check_class(kind, named)
    return trainable


def _check_class(target: type, named: str) -> None:
    if not callable(getattr(target, "step", None)):
        raise TrainableError(
            f"a class as `trainable` must have step(self), which runs one iteration and returns its metrics, "
            f"but {named} has none: add it"
        )
    saves, loads = (callable(getattr(target, name, None)) for name in ("state_dict", "load_state_dict"))
    if saves != loads:
        has, lacks = ("state_dict", "load_state_dict") if saves else ("load_state_dict", "state_dict")
        raise TrainableError(
            f"a class that is to be resumed needs state_dict(self) and load_state_dict(self, state), but "
            f"{named} has {has} only: add {lacks}, or remove {has} to do without checkpoints"
        )
