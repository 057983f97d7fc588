"""Who watches a sweep: TensorBoard, observers of one's own, and the screen.

A new observer is its own file and a line in `OBSERVERS`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hpsearch._sweep_checks import InvalidKey, KeyPath, nearest, shown

if TYPE_CHECKING:
    from hpsearch.observers.base import Observed, Observer

__all__ = ["OBSERVERS", "check_observer", "make_observer"]

OBSERVERS: Mapping[str, str] = {
    "tensorboard": "hpsearch.observers.tensorboard:TensorBoardObserver.of",
}
"""Names that a sweep may give, and what makes each: called with the `Observed`. Imported when it is asked for."""


def check_observer(name: object, key: KeyPath) -> str:
    """Take the name of an observer, or an import path; the path itself is followed when the sweep is run.

    Raises:
        InvalidKey: It is neither.
    """
    if not isinstance(name, str):
        raise InvalidKey(key, f"must be the name of an observer, or package.module:Class, got {shown(name)}")
    if name not in OBSERVERS and not _is_path(name):
        problem = f"must be the name of an observer, or package.module:Class, got {shown(name)}"
        raise InvalidKey(key, problem, nearest(name, OBSERVERS))
    return name


def make_observer(name: str, observed: Observed) -> Observer:
    """Make the observer of a name or an import path.

    Raises:
        InvalidKey: The import path leads nowhere, or to something that makes no observer.
    """
    from hpsearch.observers.base import Observer

    key = ("observers", name)
    make = _follow(OBSERVERS.get(name, name), key)
    if not callable(make):
        raise InvalidKey(key, f"must lead to a class of observers, got {shown(make)}")
    try:
        observer = make(observed)
    except Exception as error:  # whatever a class of the user's raises
        problem = f"must be called with what it observes and give an observer; it raised {type(error).__name__}"
        raise InvalidKey(key, f"{problem}: {error}") from error
    if not isinstance(observer, Observer):
        raise InvalidKey(key, f"must make a hpsearch.observers.base.Observer, got a {type(observer).__name__}")
    return observer


def _is_path(name: str) -> bool:
    module, _, attribute = name.partition(":")
    return all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")])


def _follow(path: str, key: KeyPath) -> object:
    module, _, attribute = path.partition(":")
    try:
        found: object = importlib.import_module(module)
    except Exception as error:  # a module may raise anything
        raise InvalidKey(key, f"can't be imported: {type(error).__name__}: {error}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise InvalidKey(key, f"has no {part!r} in {module}", nearest(part, vars(found)))
        found = getattr(found, part)
    return found
