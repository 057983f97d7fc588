"""What the code of a model reads that is neither in its tensors nor in its attributes.

A recording has the numbers that were read when it was made. They may change: a global variable, an attribute of a
class, a function that is put in another's place.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from hpsearch_trainers.lanes.attributes import described_value
from hpsearch_trainers.lanes.models import modules_of

__all__ = ["read_by"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_NOT_THE_USERS = ("torch", "numpy", "math", "functools", "typing", "hpsearch_trainers")
_MOST = 256
"""In a container that is looked into."""


def read_by(model: nn.Module) -> Hashable:
    """Describe what the classes of a model's modules are made of, and the variables that their code names, as of now.

    What is reached otherwise, by an index say into a container that holds none of the plain values, is left out.
    """
    reader = _Reader()
    for kind in dict.fromkeys(type(module) for module in modules_of(model)):
        for base in kind.__mro__:
            reader.read_class(base)
    return tuple(reader.found)


class _Reader:
    def __init__(self) -> None:
        self.found: list[Hashable] = []
        self._seen: set[int] = set()

    def read_class(self, kind: type) -> None:
        if kind is not object and _is_the_users(kind):
            self._read_all(value for name, value in vars(kind).items() if not name.startswith("__"))

    def _read_all(self, values: Iterator[Any]) -> None:
        for value in values:
            self._read(value)

    def _read(self, value: Any, names: Sequence[str] = ()) -> None:
        """Read a value; of what has names itself, these."""
        if isinstance(value, _PLAIN):
            self.found.append(described_value(value, ""))
            return
        if isinstance(value, Tensor):
            self.found.append(id(value))  # a recording that has it keeps it
            return
        if id(value) in self._seen or not _is_the_users(value):
            return
        self._seen.add(id(value))
        if isinstance(value, staticmethod | classmethod):
            self._read(value.__func__)
        elif isinstance(value, property):
            self._read(value.fget)
        elif isinstance(value, types.FunctionType):
            self._read_function(value)
        elif isinstance(value, list | tuple | dict | set):
            if len(value) <= _MOST:
                self.found.append(len(value))
                self._read_all(iter(value.values() if isinstance(value, dict) else value))
        elif hasattr(value, "__dict__"):
            kept = vars(value)
            self._read_all(kept[name] for name in names if name in kept)

    def _read_function(self, function: types.FunctionType) -> None:
        self.found.append(function)
        names = [*_names(function.__code__)]
        self._read_all(iter((function.__defaults__, function.__kwdefaults__)))
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # nothing yet
                self._read(cell.cell_contents, names)
        for name in names:
            if name in function.__globals__:
                self._read(function.__globals__[name], names)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


def _is_the_users(value: Any) -> bool:
    module = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    return str(module).partition(".")[0] not in _NOT_THE_USERS
