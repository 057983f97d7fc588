"""What is in the places that code reads, from some values on: variables, attributes, and what these hold."""

from __future__ import annotations

import argparse
import enum
import functools
import itertools
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from hpsearch_trainers.lanes.code_names import (
    Names,
    attributes_read_by,
    functions_in,
    grown,
    is_users,
    named_in,
    names_of,
)
from hpsearch_trainers.lanes.held_values import PLAIN, held
from hpsearch_trainers.trainer import Trainer

__all__ = ["ARE_CODE", "OF_A_MODULE", "OWN", "Place", "Reading", "Start", "name_of", "not_read_of", "read_from"]

OWN = frozenset(vars(nn.Module()))
"""Attributes that torch keeps of every module."""
OF_A_MODULE = frozenset(("forward", "__call__", "__getattr__", "train", "eval"))
"""What is called of a module without being named."""
ARE_CODE = (types.FunctionType, types.MethodType, functools.partial)
"""What is called as a function."""

_OF_A_FUNCTION = frozenset(("forward", "backward", "setup_context"))
"""Likewise, of a torch.autograd.Function."""
_MAKING = frozenset(("__init__", "__new__", "__post_init__"))
_OF_A_TRAINER = frozenset(("build", "load_state_dict", "inherit", "parts", "model", "optimizer", "params"))
"""What makes a trainer, and what it has for itself alone."""
_MADE_TO_HOLD = (types.SimpleNamespace, argparse.Namespace, Dataset)
"""Not the user's classes, but looked into."""
_MOST = 256
"""Of a container."""
_DEEPEST = 12
"""Length of the place of what isn't looked into any more."""
_OF_A_VARIABLE = 2
"""Length of the place of a variable, which is its owner and its name."""

Place = tuple[Any, ...]
"""What owns a variable, its name, and the steps from there to what its value holds."""


class Start(NamedTuple):
    """Where reading begins."""

    text: str
    """How a user names it."""
    value: Any
    attributes: frozenset[str]
    """That are read of it."""


class Reading:
    """What was in each place at one time.

    Args:
        places: What each held.
        texts: How a user names the owners.
        kept: Lets no id be another's as long as this is compared.
    """

    def __init__(self, places: Mapping[Place, object], texts: Mapping[Any, str], kept: object) -> None:
        self.places = places
        self._texts = texts
        self._kept = kept

    def changed(self, later: Reading) -> list[Place]:
        """Give the places that hold something else later, but for those within such places.

        What is new is no change: a memo has another entry. Nor is a variable that isn't read any more, or isn't there,
        and can't be read.
        """
        gone = object()
        found: dict[Place, None] = {}
        for place, was in self.places.items():
            now = later.places.get(place, gone)
            if now != was and (now is not gone or len(place) > _OF_A_VARIABLE) and not _is_in(place, found):
                found[place] = None
        return [*found]

    def reaches(self, place: Place) -> bool:
        """Whether it has this place, or one that it lay in."""
        return _is_in(place, self.places)

    def told(self, place: Place) -> str:
        """Name a place as a user would."""
        owner, *steps = place
        return self._texts[owner] + "".join(map(_told, steps))


def read_from(starts: Mapping[Any, Start], own: set[int], home: str) -> Reading:
    """Read what code reads from these starts on.

    Args:
        starts: By what tells them apart.
        own: ids of objects of which no attributes are looked into but those that others may hold, too.
        home: See `is_users`.
    """
    walk = _Walk(own, home)
    for key, start in starts.items():
        walk.start(key, start)
    return Reading(walk.places, walk.texts, (starts, walk.kept))


def name_of(value: Any) -> str:
    """Give the full name of a function or a class."""
    return f"{value.__module__}.{getattr(value, '__qualname__', type(value).__qualname__)}"


def not_read_of(kind: type) -> frozenset[str]:
    """Name what training doesn't read of a class, or not of another trial's."""
    return _OF_A_TRAINER if issubclass(kind, Trainer) else frozenset()


class _Walk:
    def __init__(self, own: set[int], home: str) -> None:
        self.places: dict[Place, object] = {}
        self.texts: dict[Any, str] = {}
        self.kept: list[Any] = []
        self._own = own
        self._users = functools.partial(is_users, home=home)
        self._seen: set[Any] = set()
        self._inside: set[int] = set()

    def start(self, key: Any, start: Start) -> None:
        if isinstance(start.value, type):
            self._class(start.value, start.attributes)
        else:
            self.texts[key] = start.text
            self._value((key,), start.value, start.attributes)

    def _value(self, place: Place, value: Any, attributes: frozenset[str]) -> None:
        """Read a value, and what it holds; of what has attributes, these."""
        if isinstance(value, PLAIN):
            self.places[place] = held(value)
            return
        self.places[place] = type(value)
        if id(value) in self._inside or len(place) > _DEEPEST:
            return
        self._inside.add(id(value))
        self.kept.append(value)
        for step, one, of_it in self._into(place, value, attributes):
            self._value((*place, step), one, of_it)
        self._inside.discard(id(value))

    def _into(self, place: Place, value: Any, attributes: frozenset[str]) -> Iterator[tuple[Any, Any, frozenset[str]]]:
        """Note what a value is by itself; give the steps to what it holds, and which attributes are read of that."""
        kind = type(value)
        if isinstance(value, Tensor | enum.Enum):
            self.places[place] = held(value)
        elif isinstance(value, ARE_CODE) or _wrapped(value) is not None:
            yield from self._function(place, value)
        elif isinstance(value, Mapping):
            for key, one in itertools.islice(_items(value), _MOST):
                yield ("item", key), one, attributes
        elif isinstance(value, list | tuple):
            self.places[place] = kind, len(value)
            for number, one in enumerate(itertools.islice(value, _MOST)):
                yield ("item", number), one, attributes
        elif isinstance(value, set | frozenset):
            self.places[place] = kind, frozenset(one for one in value if isinstance(one, PLAIN))
        elif isinstance(value, types.ModuleType):
            self._variables(vars(value), attributes, [*(attributes & vars(value).keys())])
        elif isinstance(value, type):
            self.places[place] = held(value)
            self._class(value, attributes | _implied(value))
        elif isinstance(value, nn.Module) and id(value) not in self._own:
            yield from self._module(value)
        elif self._users(kind.__module__):
            yield from self._object(value, attributes)
        elif isinstance(value, _MADE_TO_HOLD):
            for name, one in _held_by(value):
                yield name, one, attributes
        elif id(value) not in self._own:
            self.places[place] = held(value)

    def _function(self, place: Place, value: Any) -> Iterator[tuple[Any, Any, frozenset[str]]]:
        if isinstance(value, functools.partial):
            attributes = attributes_read_by(value.func, self._users)
            for step in ("func", "args", "keywords"):
                yield step, getattr(value, step), attributes
            return
        if isinstance(value, types.MethodType):
            yield "__func__", value.__func__, frozenset()
            yield "__self__", value.__self__, attributes_read_by(value, self._users)
            return
        inner = _wrapped(value)
        if inner is not None:
            yield "__wrapped__", inner, frozenset()
        if not isinstance(value, types.FunctionType) or not self._users(value.__globals__.get("__name__")):
            if inner is None:
                self.places[place] = held(value)
            return
        names = names_of(value.__code__)
        self.places[place] = value.__code__
        yield "__defaults__", value.__defaults__, names.attributes
        yield "__kwdefaults__", value.__kwdefaults__, names.attributes
        for name, content in _closure(value):
            yield ("variable", name), content, names.attributes
        self._globals(value, names)

    def _globals(self, function: types.FunctionType, names: Names) -> None:
        key = function.__code__, id(function.__globals__)
        if key not in self._seen:
            self._seen.add(key)
            self._variables(function.__globals__, names.attributes, names.variables)

    def _variables(self, variables: dict[str, Any], attributes: frozenset[str], names: Iterable[str]) -> None:
        """Read variables of a module, as far as it has them."""
        module = variables.get("__name__")
        if not self._users(module):
            return
        self.texts[id(variables)] = str(module)
        for name in names:
            if name in variables and not name.startswith("__"):
                self._once((id(variables), name), variables[name], attributes)

    def _class(self, kind: type, attributes: frozenset[str]) -> None:
        """Read attributes of a class, but for those that no class of the user's has."""
        if not self._users(kind.__module__) or (kind, attributes) in self._seen:
            return
        self._seen.add((kind, attributes))
        self.texts[kind] = name_of(kind)
        for name in grown(kind, attributes, self._users) - not_read_of(kind):
            value = named_in(kind, name, self._users)
            if isinstance(value, staticmethod | classmethod | property | functools.cached_property):
                for function in functions_in(value):
                    self._once((kind, name), function, attributes)
            elif value is not None:
                self._once((kind, name), value, attributes)

    def _once(self, place: Place, value: Any, attributes: frozenset[str]) -> None:
        if (place, attributes) not in self._seen:
            self._seen.add((place, attributes))
            self._value(place, value, attributes)

    def _module(self, module: nn.Module) -> Iterator[tuple[Any, Any, frozenset[str]]]:
        """Read all of a module, which is no trainer's own."""
        attributes = frozenset[str]()
        if self._users(type(module).__module__):
            attributes = grown(type(module), OF_A_MODULE, self._users)
            self._class(type(module), attributes)
        yield "training", module.training, attributes
        kept = {name: value for name, value in vars(module).items() if name not in OWN}
        for name, one in (kept | module._parameters | module._buffers | module._modules).items():
            yield name, one, attributes

    def _object(self, value: Any, attributes: frozenset[str]) -> Iterator[tuple[Any, Any, frozenset[str]]]:
        """Read of an object whose class is the user's what is named, and what that reads."""
        kind = type(value)
        implied = frozenset() if isinstance(value, nn.Module | Trainer) else _implied(kind) - _MAKING
        attributes = grown(kind, attributes | implied, self._users) - not_read_of(kind)
        self._class(kind, attributes)
        everything = "__getattr__" in implied
        for name, one in _held_by(value):
            if (everything or name in attributes) and not (isinstance(value, nn.Module) and name in OWN):
                yield name, one, attributes


def _told(step: Any) -> str:
    if isinstance(step, str):
        return f".{step}"
    kind, name = step
    return f"[{name!r}]" if kind == "item" else f", in its variable {name}"


def _is_in(place: Place, places: Mapping[Place, object]) -> bool:
    return any(place[:length] in places for length in range(1, len(place) + 1))


def _wrapped(value: Any) -> Any:
    """Give the function that another one, or a cache of what it gave, is around."""
    is_around = isinstance(value, types.FunctionType | functools._lru_cache_wrapper)
    return vars(value).get("__wrapped__") if is_around else None


def _closure(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            content = cell.cell_contents
        except ValueError:  # nothing yet
            continue
        yield name, content


def _items(value: Mapping[Any, Any]) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, dict):
        return dict.items(value)
    try:
        return [*value.items()]
    except Exception:  # what a user's class does
        return ()


def _held_by(value: Any) -> Iterator[tuple[str, Any]]:
    """Give what an object has by name, in its slots, too."""
    if hasattr(value, "__dict__"):
        yield from vars(value).items()
    for base in type(value).__mro__:
        for name, slot in vars(base).items() if "__slots__" in vars(base) else ():
            if isinstance(slot, types.MemberDescriptorType) and hasattr(value, name):
                yield name, getattr(value, name)


def _implied(kind: type) -> frozenset[str]:
    """Name what may be run of a class that is at hand without being named."""
    if issubclass(kind, nn.Module | Trainer):
        return OF_A_MODULE if issubclass(kind, nn.Module) else frozenset()
    if issubclass(kind, torch.autograd.Function):
        return _OF_A_FUNCTION
    named = (name for base in kind.__mro__[:-1] for name, value in vars(base).items() if callable(value))
    return frozenset(name for name in named if name.startswith("__"))
