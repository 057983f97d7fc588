"""Who watches a sweep: TensorBoard, other tools' runs, observers of one's own, and the screen.

A new observer is its own file here and a line in `known_observers.py`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from hpsearch.checks import InvalidKey, shown
from hpsearch.errors import SweepError
from hpsearch.imports import import_object
from hpsearch.known_observers import KNOWN_OBSERVERS, OPTIONAL
from hpsearch.observers.base import Observed, Observer

__all__ = ["make_observer"]


def make_observer(name: str, observed: Observed, search_path: Sequence[str] = ()) -> Observer:
    """Make the observer of a name or an import path.

    Raises:
        InvalidKey: The import path leads nowhere, or to something that makes no observer; or the package that the
            observer needs isn't installed.
    """
    key = ("observers", name)
    if name in OPTIONAL and not _is_installed(name):
        problem = f"needs the package {name}, which isn't installed"
        raise InvalidKey(key, problem, f'install it: pip install "hpsearch[{name}]"')
    try:
        folders = () if name in KNOWN_OBSERVERS else search_path
        make = import_object(KNOWN_OBSERVERS.get(name, name), "observers", SweepError, folders)
    except SweepError as error:
        raise InvalidKey(key, str(error)) from error
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


def _is_installed(package: str) -> bool:
    """Say whether a package could be imported; a folder that only has its name, such as W&B's own, is none."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None
