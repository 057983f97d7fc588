"""Follow an import path to a trainable, and check that it can be one."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
import traceback
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from hpsearch.errors import TrainableError
from hpsearch.failures import exception_line

__all__ = ["Trainable", "check_importable", "resolve_trainable"]

Trainable = Callable[..., Any]
"""A function of the trial, or a class with `__init__(trial)` and `step()`."""


def resolve_trainable(spec: str | Trainable, search_path: Sequence[str] = ()) -> Trainable:
    """Import `package.module:name`, or take the function or class itself; check its shape.

    Args:
        spec: The import path, or what it would lead to.
        search_path: Folders put in front of `sys.path`, and left there: what a trainable imports later must
            be found as well.

    Raises:
        TrainableError: Names the part that can't be followed, and the nearest one that could.
    """
    if not isinstance(spec, str):
        return _checked(spec, getattr(spec, "__qualname__", repr(spec)))
    module_name, attribute = _split(spec)
    sys.path[:0] = [folder for folder in search_path if folder not in sys.path]
    return _checked(_attribute(_import(module_name, spec, search_path), attribute, spec), spec)


def check_importable(spec: str, search_path: Sequence[str] = ()) -> None:
    """See that the outermost package of an import path is there, without importing it.

    Raises:
        TrainableError: It isn't.
    """
    outermost = _split(spec)[0].partition(".")[0]
    before = list(sys.path)
    sys.path[:0] = search_path
    importlib.invalidate_caches()
    try:
        if outermost not in sys.modules and importlib.util.find_spec(outermost) is None:
            raise _missing_module(outermost, spec, search_path)
    finally:
        sys.path[:] = before


def _split(spec: str) -> tuple[str, str]:
    module_name, colon, attribute = spec.partition(":")
    if not (colon and module_name and attribute):
        raise TrainableError(
            f"`trainable` must be written `package.module:name`, but is {spec!r}: put a colon before the "
            "name of the function or class"
        )
    return module_name, attribute


def _missing_module(missing: str, spec: str, search_path: Sequence[str]) -> TrainableError:
    folders = ", ".join(map(repr, search_path)) or "no folder of the sweep's"
    return TrainableError(
        f"`trainable: {spec}` names the module {missing!r}, which isn't there{_nearest_module(missing)}: "
        f"run from the folder that holds it, or install it (looked in {folders}, then where Python looks)"
    )


def _import(module_name: str, spec: str, search_path: Sequence[str]) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except KeyboardInterrupt:
        raise
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name != missing and not module_name.startswith(f"{missing}."):
            raise _import_error(module_name, spec, error) from error
        raise _missing_module(missing, spec, search_path) from error
    except BaseException as error:  # a module may raise anything, SystemExit included
        raise _import_error(module_name, spec, error) from error


def _import_error(module_name: str, spec: str, error: BaseException) -> TrainableError:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    where = f", at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    if isinstance(error, SyntaxError):
        where = f", at {error.filename}:{error.lineno}"
    return TrainableError(
        f"`trainable: {spec}` can't be had: importing {module_name!r} raised {exception_line(error)}{where}"
    )


def _nearest_module(missing: str) -> str:
    parent, _, last = missing.rpartition(".")
    folders = getattr(sys.modules.get(parent), "__path__", ()) if parent else sys.path
    names = [module.name for module in pkgutil.iter_modules(list(folders))]
    nearest = difflib.get_close_matches(last, names, n=1)
    return f" (did you mean {nearest[0]!r}?)" if nearest else ""


def _attribute(module: ModuleType, attribute: str, spec: str) -> Any:
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            names = [name for name, entry in vars(value).items() if callable(entry) and name[0] != "_"]
            nearest = difflib.get_close_matches(part, names, n=1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"it has {', '.join(names) or 'no functions'}"
            owner = getattr(value, "__file__", None) or getattr(value, "__name__", repr(value))
            raise TrainableError(f"`trainable: {spec}` names {part!r}, which isn't in {owner}: {hint}")
        value = getattr(value, part)
    return value


def _checked(target: Any, named: str) -> Trainable:
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
        what = f"{named}(self, trial)" if inspect.isclass(target) else f"{named}(trial)"
        raise TrainableError(f"`trainable` is called as {what}, but {named} doesn't fit: {error}") from error
    except ValueError:
        pass  # a builtin without a signature
    if inspect.isclass(target):
        _check_class(target, named)
    return trainable


def _check_class(target: type, named: str) -> None:
    if not callable(getattr(target, "step", None)):
        raise TrainableError(
            f"a class as `trainable` must have step(self), which runs one iteration and gives its metrics, "
            f"but {named} has none: add it"
        )
    saves, loads = (callable(getattr(target, name, None)) for name in ("state_dict", "load_state_dict"))
    if saves != loads:
        has, lacks = ("state_dict", "load_state_dict") if saves else ("load_state_dict", "state_dict")
        raise TrainableError(
            f"a class that is to be continued needs state_dict(self) and load_state_dict(self, state), but "
            f"{named} has {has} only: add {lacks}, or remove {has} to do without checkpoints"
        )
