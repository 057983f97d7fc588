"""What the training of trainers reads that is in reach of other trainers' builds.

Trainers that are trained beside each other are built one after the other, before any is trained. What a build puts into
a global variable, a class, or an object of the module is there but once: all of them would train with the last one's.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from torch import nn
from torch.utils.data import Dataset, TensorDataset

from hpsearch_trainers.lanes.code_names import attributes_read_by, functions_in, grown, is_users
from hpsearch_trainers.lanes.contract import THE_LOOP
from hpsearch_trainers.lanes.held_values import PLAIN
from hpsearch_trainers.lanes.models import modules_of
from hpsearch_trainers.lanes.reading import (
    ARE_CODE,
    OF_A_MODULE,
    OWN,
    Reading,
    Start,
    name_of,
    not_read_of,
    read_from,
)
from hpsearch_trainers.trainer import Trainer

__all__ = ["Reads", "read", "reads_of"]

_HOOKS = tuple(sorted(name for name in OWN if name.endswith("_hooks")))
_OF_AN_OPTIMIZER = frozenset(("step", "zero_grad"))


class Reads(NamedTuple):
    """From where the training of one trainer reaches what isn't its own."""

    starts: Mapping[Any, Start]
    """By what tells them apart: those of two trainers are often the same."""
    own: frozenset[int]
    """ids of the trainer and what it is made of."""
    home: str
    """The outermost package of its class."""


def reads_of(trainer: Trainer) -> Reads:
    """Find from where the training of a trainer reads: model, loss, metrics, optimizer, data, methods of its own.

    What only its `build` and what this calls read isn't in it, nor is what the trainer has for itself alone.
    """
    home = type(trainer).__module__.partition(".")[0]
    finder, modules, parts = _Finder(home), modules_of(trainer.model), trainer.parts
    for module in modules:
        finder.module(module)
    for value in (parts.loss, *parts.metrics.values(), *parts.measures.values(), parts.schedule):
        finder.called(value)
    for name in (*THE_LOOP, "state_dict"):
        if getattr(type(trainer), name) is not getattr(Trainer, name) or name in vars(trainer):
            finder.called(getattr(trainer, name))
    finder.class_of(trainer.optimizer, _OF_AN_OPTIMIZER)
    for data in (parts.train, parts.validation):
        if isinstance(data, Dataset) and not isinstance(data, TensorDataset):
            finder.begin(type(data).__qualname__, data, frozenset())
    return Reads(finder.starts, frozenset(map(id, (trainer, trainer.optimizer, *modules))), home)


def read(of_all: Iterable[Reads]) -> Reading:
    """Read what the training of these trainers reads, as it is now."""
    starts: dict[Any, Start] = {}
    own: set[int] = set()
    home = ""
    for reads in of_all:
        if reads.starts:
            starts |= reads.starts
            own |= reads.own
            home = reads.home
    return read_from(starts, own, home)


class _Finder:
    def __init__(self, home: str) -> None:
        self._users = functools.partial(is_users, home=home)
        self.starts: dict[Any, Start] = {}

    def begin(self, text: str, value: Any, attributes: frozenset[str]) -> None:
        """Begin at a value; functions of equal code that have nothing else to them are one."""
        key: Any = (id(value), attributes)
        if isinstance(value, types.FunctionType) and not (value.__closure__ or value.__defaults__ or vars(value)):
            key = (value.__code__, id(value.__globals__))
        self.starts[key] = Start(text, value, attributes)

    def called(self, value: Any) -> None:
        """Begin at what training calls."""
        if isinstance(value, nn.Module):
            for module in modules_of(value):
                self.module(module)
        elif isinstance(value, functools.partial):
            self.called(value.func)
            for one in (*value.args, *value.keywords.values()):
                self._argument(value.func, one)
        elif isinstance(value, types.MethodType):
            self.called(value.__func__)
            self._instance(value.__self__, attributes_read_by(value, self._users))
        elif isinstance(value, types.FunctionType):
            for function in functions_in(value):
                if self._users(function.__globals__.get("__name__")):
                    self.begin(name_of(function), function, frozenset())
        elif not isinstance(value, type) and self._users(type(value).__module__):
            self._instance(value, frozenset(("__call__",)))

    def module(self, module: nn.Module) -> None:
        """Begin at a module's class, and at what its attributes hold."""
        for name in _HOOKS:
            for hook in vars(module).get(name, {}).values():
                self.called(hook)
        if self._users(type(module).__module__):
            self._instance(module, OF_A_MODULE)
            return
        for name, value in vars(module).items():
            if isinstance(value, ARE_CODE) and name not in OWN:
                self.called(value)

    def class_of(self, value: object, attributes: frozenset[str]) -> None:
        """Begin at the class of an object, of which these are read."""
        kind = type(value)
        if self._users(kind.__module__):
            self.starts[kind, attributes] = Start(name_of(kind), kind, attributes)

    def _instance(self, value: Any, attributes: frozenset[str]) -> None:
        kind = type(value)
        attributes = grown(kind, attributes, self._users) - not_read_of(kind)
        self.class_of(value, attributes)
        for name, one in vars(value).items() if hasattr(value, "__dict__") else ():
            if name in attributes and name not in OWN:
                self._attribute(f"{name_of(kind)}.{name}", one, attributes)

    def _attribute(self, text: str, value: Any, attributes: frozenset[str]) -> None:
        """Begin at what an object holds, which others may hold, too."""
        if isinstance(value, ARE_CODE):
            self.called(value)
        elif not (isinstance(value, PLAIN) or (isinstance(value, tuple) and all(isinstance(e, PLAIN) for e in value))):
            self.begin(text, value, attributes)

    def _argument(self, function: Any, value: Any) -> None:
        self._attribute(f"an argument of {name_of(function)}", value, attributes_read_by(function, self._users))
