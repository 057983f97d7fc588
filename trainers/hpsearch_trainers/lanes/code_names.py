"""Which names a function's code reads, and whose code it is."""

from __future__ import annotations

import dis
import functools
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import Any, NamedTuple

__all__ = ["Names", "attributes_read_by", "functions_in", "grown", "is_users", "named_in", "names_of"]

_NOT_THE_USERS = frozenset(("torch", "numpy", "hpsearch", "hpsearch_comm", "hpsearch_trainers"))
_INSTALLED = frozenset(("site-packages", "dist-packages"))
_OF_VARIABLES = frozenset(("LOAD_GLOBAL", "LOAD_NAME"))
_OF_ATTRIBUTES = frozenset(("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"))


class Names(NamedTuple):
    """What a function's code reads by name, that of functions within it counting."""

    variables: tuple[str, ...]
    """Global ones."""
    attributes: frozenset[str]
    """Of whatever it has at hand; each text that could be the name of one counts, as getattr takes it."""


@functools.lru_cache(4096)
def names_of(code: types.CodeType) -> Names:
    """Give the names that a code reads."""
    variables: dict[str, None] = {}
    attributes: set[str] = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in _OF_VARIABLES:
            variables[instruction.argval] = None
        elif instruction.opname in _OF_ATTRIBUTES:
            attributes.add(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, str) and constant.isidentifier():
            attributes.add(constant)
        elif isinstance(constant, types.CodeType):
            inner = names_of(constant)
            variables |= dict.fromkeys(inner.variables)
            attributes |= inner.attributes
    return Names((*variables,), frozenset(attributes))


def is_users(module: object, home: str) -> bool:
    """Whether it is the name of a module that a user wrote: none of Python's own, ours, or an installed one.

    Args:
        module: The name; what isn't one is the user's.
        home: The outermost package of the trainer's class, which is the user's if it is installed, too.
    """
    package = str(module).partition(".")[0]
    return package not in _NOT_THE_USERS and (package == home or not _is_installed(package))


@functools.lru_cache(1024)
def _is_installed(package: str) -> bool:
    if package in sys.stdlib_module_names:
        return True
    module = sys.modules.get(package)
    places = [getattr(module, "__file__", None) or "", *(getattr(module, "__path__", None) or ())]
    return any(_INSTALLED & {*PurePath(place).parts} for place in places)


def functions_in(value: Any) -> Iterator[types.FunctionType]:
    """Give the functions that are run where a function, a method or another attribute of a class is used.

    That is a function, and each that it was made around.
    """
    if isinstance(value, staticmethod | classmethod | types.MethodType):
        value = value.__func__
    for one in (value.fget, value.fset) if isinstance(value, property) else (value,):
        inner: Any = one.func if isinstance(one, functools.cached_property) else one
        while inner is not None:
            if isinstance(inner, types.FunctionType):
                yield inner
            inner = vars(inner).get("__wrapped__") if callable(inner) and hasattr(inner, "__dict__") else None


def attributes_read_by(function: Any, users: Callable[[object], bool]) -> frozenset[str]:
    """Name the attributes that code of the user's reads in a function, a method, or an attribute of a class."""
    found = [one for one in functions_in(function) if users(one.__globals__.get("__name__"))]
    return frozenset[str]().union(*(names_of(one.__code__).attributes for one in found))


def named_in(kind: type, name: str, users: Callable[[object], bool]) -> Any:
    """Give an attribute of a class as its definition has it; None where it is of no class that a user wrote."""
    for base in kind.__mro__:
        if name in vars(base):
            return vars(base)[name] if users(base.__module__) else None
    return None


def grown(kind: type, names: frozenset[str], users: Callable[[object], bool]) -> frozenset[str]:
    """Add to names of a class's attributes those that their code reads, and that of these, and so on."""
    found, waiting = set(names), [*names]
    while waiting:
        more = attributes_read_by(named_in(kind, waiting.pop(), users), users) - found
        found |= more
        waiting += more
    return frozenset(found)
