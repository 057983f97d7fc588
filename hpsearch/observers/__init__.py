"""Observers of a sweep: TensorBoard, other tools' runs, users' own observers, and displays.

A new observer is its own file here and a line in `config/observer_names.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpsearch.config.checks import InvalidKey, shown
from hpsearch.config.import_paths import import_object, installing, is_installed
from hpsearch.config.observer_names import KNOWN_OBSERVERS, OPTIONAL
from hpsearch.errors import SweepError, exception_line
from hpsearch.observers.base import Observed, Observer

__all__ = ["find_observer", "make_observer"]


def find_observer(name: str, search_path: Sequence[str] = ()) -> Callable[[Observed], Observer]:
    """Return the factory of an observer: a class or a function.

    Raises:
        InvalidKey: The name or the import path doesn't exist, the object can't make an observer, or the package that
            the observer needs isn't installed.
    """
    key = ("observers", name)
    if name in OPTIONAL and not is_installed(name):
        problem = f"needs the package {name}, which isn't installed"
        raise InvalidKey(key, problem, f"install it: {installing(name)}")
    try:
        folders = () if name in KNOWN_OBSERVERS else search_path
        make: Callable[[Observed], Observer] = import_object(
            KNOWN_OBSERVERS.get(name, name), "observers", SweepError, folders
        )
    except SweepError as error:
        raise InvalidKey(key, str(error)) from error
    if not callable(make):
        raise InvalidKey(key, f"must lead to a class of observers, got {shown(make)}")
    if isinstance(make, type) and not issubclass(make, Observer):
        raise InvalidKey(key, f"must be derived from hpsearch.observers.base.Observer, but {make.__name__} isn't")
    if missing := sorted(getattr(make, "__abstractmethods__", ())):
        raise InvalidKey(key, f"must define {' and '.join(missing)}, which {getattr(make, '__name__', name)} doesn't")
    return make


def make_observer(name: str, observed: Observed, search_path: Sequence[str] = ()) -> Observer:
    """Create an observer from its name or import path.

    Raises:
        InvalidKey: `find_observer` raised it, the factory raised an error, or it returned something else.
    """
    make = find_observer(name, search_path)
    key = ("observers", name)
    try:
        observer: object = make(observed)
    except (Exception, SystemExit) as error:  # any exception of the user's class; SystemExit would end the sweep
        raise InvalidKey(key, f"must be made of what it observes, but raised {exception_line(error)}") from error
    if not isinstance(observer, Observer):
        raise InvalidKey(key, f"must make a hpsearch.observers.base.Observer, got a {type(observer).__name__}")
    return observer
