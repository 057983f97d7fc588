"""Detect changes of the plain values of the trainable's own modules, which later trials of the process would see.

Plain values are numbers, strings, small tensors and arrays, and lists, dicts and sets of these: in modules, in their
classes, in objects of these classes, and in defaults of functions. A value that existed before and differs afterwards
is reported. Values that are filled for the first time (None, or an empty container) and new entries of a dict or set
aren't, as caches do that.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import inspect
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hpsearch.trainable.trainables import unwrapped
from hpsearch.worker.own_files import is_own

_PLAIN = (bool, int, float, complex, str, bytes)

_CONTAINERS = (list, tuple, dict, types.SimpleNamespace, argparse.Namespace)

_NEVER_ENTRIES = frozenset((types.BuiltinFunctionType, types.ModuleType, types.NoneType))
"""Types of common module values that are skipped first, for speed: all values are compared before each segment."""

_MOST_ENTRIES = 1000
"""Maximum number of compared entries of a container. A data set in a module must not slow down each segment."""

_MOST_VALUES = 20_000
"""Maximum number of compared values in all modules."""

_MOST_DEPTH = 10

_MOST_NAMES = 5
"""Maximum number of names in a message."""

_MISSING = object()


class _Entries(NamedTuple):
    """The entries of a list, dict or namespace."""

    kind: type
    """`list`, `dict`, or `object` if the entries are attributes."""
    length: int
    """Length of a list; 0 for others, which may gain entries."""
    values: Mapping[Any, Any]


class Namespace(NamedTuple):
    """A module, or the globals of code that was pickled by value, with its values."""

    name: str
    owner: Any
    entries: _Entries


class _Globals:
    """An object whose attributes are a dict of global names."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.__dict__ = names


class ModuleValues:
    """Finds what a segment changes in the modules of the trainable's code.

    These are all modules that this process has imported, except the standard library, installed packages and our own.
    The trainable's own package counts even if it is installed.

    Args:
        target: The trainable.
    """

    def __init__(self, target: Any) -> None:
        self._partial = target if isinstance(target, functools.partial) else None
        self._target = target = unwrapped(target)
        self._package = str(getattr(target, "__module__", "__main__")).partition(".")[0]
        self._count = 0
        self._seen_modules: set[str] = set()
        self._own_modules: list[str] = []

    def look(self) -> list[Namespace]:
        """Return the values as they are now."""
        namespaces = list(self._namespaces())
        walk = _Walk({*self._own_modules, "__main__"})
        return [Namespace(name, owner, walk.entries(owner)) for name, owner in namespaces]

    def _namespaces(self) -> Iterator[tuple[str, Any]]:
        """Return the trainable's own modules, or its globals if it was pickled by value."""
        if len(sys.modules) != self._count:
            self._count, new = len(sys.modules), sys.modules.keys() - self._seen_modules
            self._seen_modules |= new
            self._own_modules = sorted({*self._own_modules, *filter(self._is_own, new)})
        seen = set()
        for name in self._own_modules:  # `__main__` before `__mp_main__`, which is the same module
            module = sys.modules.get(name)
            if module is not None and id(vars(module)) not in seen:
                seen.add(id(vars(module)))
                yield name, module
        if (partial := self._partial) is not None:
            yield "functools.partial", _Globals({"args": partial.args, "keywords": partial.keywords})
        for name, names in _globals_of(self._target):
            if id(names) not in seen:
                seen.add(id(names))
                yield name, _Globals(names)

    def _is_own(self, name: str) -> bool:
        path = getattr(sys.modules.get(name), "__file__", None)
        return isinstance(path, str) and is_own(name, path, self._package)


def module_changes(before: Sequence[Namespace]) -> tuple[str, ...]:
    """Return the names of the values that differ from earlier ones, such as `config.DEFAULTS['lr']`: the first few."""
    names = [name for module, owner, entries in before for name in _changes(module, entries, owner)]
    more = [f"{len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else []
    return (*names[:_MOST_NAMES], *more)


def note_on_modules(changes: Sequence[str]) -> str:
    """Return a log line on the changes that a segment made in its modules; empty if there are none."""
    if not changes:
        return ""
    return f"hpsearch: changed in this segment, and left so in its process: {', '.join(changes)}\n"


class _Walk:
    """One pass over all values: each container once, up to a limit."""

    def __init__(self, own_modules: set[str]) -> None:
        self._own_modules = own_modules
        self._visited: set[int] = set()
        self._remaining = _MOST_VALUES

    def entries(self, owner: Any, depth: int = 0) -> _Entries:
        """Return the entries of a container or namespace that can be compared later."""
        self._visited.add(id(owner))
        values: dict[Any, Any] = {}
        for key, value in _items(owner):
            if self._remaining <= 0:
                break
            self._remaining -= 1
            if type(value) in _NEVER_ENTRIES:
                continue
            if (plain := _plain(value)) is not None and not (plain is not value and isinstance(owner, list | tuple)):
                values[key] = plain
            elif isinstance(value, set | frozenset):
                if len(value) <= _MOST_ENTRIES:
                    values[key] = frozenset(entry for entry in value if isinstance(entry, _PLAIN))
            elif depth < _MOST_DEPTH and id(value) not in self._visited and self._has_entries(value):
                values[key] = self.entries(value, depth + 1)
        kind = _kind(owner)
        return _Entries(kind, len(owner) if kind is list else 0, values)

    def _has_entries(self, value: Any) -> bool:
        """Return whether a value is a container, a class of the trainable's own, or an object of one."""
        if isinstance(value, _CONTAINERS):
            return True
        if isinstance(value, types.FunctionType):
            has_container = any(isinstance(default, _CONTAINERS) for default in _defaults(value).values())
            return value.__module__ in self._own_modules and has_container
        kind = value if isinstance(value, type) else type(value)
        return kind.__module__ in self._own_modules and hasattr(value, "__dict__")


def _plain(value: Any) -> Any:
    """Return a plain value, a string of the numbers of a small tensor or array, or None."""
    if isinstance(value, _PLAIN):
        return value
    module = type(value).__module__
    if not module.startswith(("torch", "numpy")) or isinstance(value, type):
        return None
    if module.partition(".")[0] not in ("torch", "numpy") or not hasattr(value, "tolist"):
        return None
    with contextlib.suppress(RuntimeError):  # a tensor without data, for example on torch's device `meta`
        size = value.numel() if hasattr(value, "numel") else value.size
        return repr(value.tolist()) if size <= _MOST_ENTRIES else None
    return None


def _kind(owner: Any) -> type:
    if isinstance(owner, list | tuple):
        return list
    return dict if isinstance(owner, dict) else object


def _items(owner: Any) -> list[tuple[Any, Any]]:
    """Return the first entries of a container (of a dict, those with plain keys), or the names of a namespace."""
    if isinstance(owner, list | tuple):
        return list(enumerate(owner[:_MOST_ENTRIES]))
    if isinstance(owner, dict):
        return [entry for entry in list(owner.items())[:_MOST_ENTRIES] if isinstance(entry[0], _PLAIN)]
    return [(name, value) for name, value in list(_attributes(owner).items()) if not name.startswith("__")]


def _attributes(owner: Any) -> Mapping[str, Any]:
    """Return the names of a namespace; of a function, its parameters that have defaults."""
    return _defaults(owner) if isinstance(owner, types.FunctionType) else getattr(owner, "__dict__", {})


def _defaults(function: types.FunctionType) -> dict[str, Any]:
    """Return the defaults of a function's parameters."""
    if not (function.__defaults__ or function.__kwdefaults__):
        return {}
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = function.__defaults__ or ()
    return dict(zip(names[len(names) - len(defaults) :], defaults, strict=True)) | (function.__kwdefaults__ or {})


def _changes(path: str, before: _Entries, owner: Any) -> Iterator[str]:
    """Yield the names of the entries of a container or namespace that differ."""
    if not before.values and not before.length:
        return  # it is filled for the first time
    if _kind(owner) is not before.kind or (before.kind is list and len(owner) != before.length):
        yield path
        return
    entries: Any = owner if before.kind in (list, dict) else _attributes(owner)
    for key, value in before.values.items():
        name = f"{path}.{key}" if before.kind is object else f"{path}[{key!r}]"
        now = entries[key] if before.kind is list else entries.get(key, _MISSING)
        if isinstance(value, _Entries):
            yield from _changes(name, value, now)
        elif isinstance(value, frozenset):
            if value and not (isinstance(now, set | frozenset) and value <= now):
                yield name
        elif (plain := _plain(now)) is None or (plain != value and (plain == plain or value == value)):
            yield name


def _globals_of(target: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return the globals that the code of a function or class refers to, by the name of its module."""
    if not isinstance(target, type):
        code = [target if inspect.isfunction(target) else type(target).__call__]
    else:
        yield target.__module__, {target.__name__: target}
        code = [entry for kind in target.__mro__ for entry in vars(kind).values()]
    for entry in code:
        if inspect.isfunction(entry) and entry.__module__ in (target.__module__, "__main__"):
            yield entry.__module__, entry.__globals__
