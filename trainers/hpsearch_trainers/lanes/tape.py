"""A computation as a list of torch operator calls, which can be played without the Python code that made them.

A step of a small model is about fifty operator calls of a few microseconds. Modules, autograd and the choice of rules
for lanes each cost as much again. The calls are the same in each step. So the first step of a kind is recorded below
these layers (see `recorder`). Later steps make the same calls, in the same order, on tensors of the same shapes and
strides, so the kernels and the results are the same bit for bit.

Another pack's step of this kind makes the same calls on its own stacks, data and generators. These objects are a pack's
*roles*. A recording refers to roles by name, and becomes a tape when they are bound.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

_MOST_TEXTS = 256
"""Maximum number of compiled functions in the cache."""


@dataclass(frozen=True, slots=True)
class Tape:
    """A recording that can be played.

    Attributes:
        forward: Computes the outputs and the tensors saved for `backward` from the inputs.
        backward: Computes the results from the saved tensors, which it releases, and the inputs at the cut; None if the
            recording wasn't cut.
    """

    forward: Callable[..., tuple[list[Tensor], list[Tensor]]]
    backward: Callable[..., list[Tensor | None]] | None


@dataclass(frozen=True, slots=True)
class Name:
    """A placeholder for an object that differs between steps or packs."""

    name: str


@dataclass(slots=True)
class RecordedCall:
    """A call of a function."""

    run: Callable[..., Any]
    args: Sequence[Any]
    kwargs: dict[str, Any]
    results: list[str]
    unpacked: bool
    """Whether the result is a sequence."""


@dataclass(slots=True)
class TapePart:
    """The calls before the cut, or those after it."""

    inputs: list[str]
    calls: list[RecordedCall] = field(default_factory=list)
    outputs: list[str | None] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Function:
    code: types.CodeType
    constants: Mapping[str, Any]

    def bind(self, roles: Mapping[str, object]) -> Callable[..., Any]:
        scope = {**self.constants, **roles}
        exec(self.code, scope)
        run: Callable[..., Any] = scope.pop("run")  # a function in its own globals would be a reference cycle
        return run


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded computation.

    Attributes:
        of_any_pack: Whether it is valid for other packs: it refers to its own pack only through roles.
    """

    of_any_pack: bool
    _forward: _Function
    _backward: _Function | None

    def tape(self, roles: Sequence[object]) -> Tape:
        """Return a tape with these roles, which must have the same order as in the recording."""
        named = {role_name(number): role for number, role in enumerate(roles)}
        return Tape(self._forward.bind(named), None if self._backward is None else self._backward.bind(named))


def role_name(number: int) -> str:
    """Return the name of a role in a recording, by its index."""
    return f"r{number}"


def recording_of(parts: Sequence[TapePart], views: Sequence[RecordedCall], *, of_any_pack: bool) -> Recording:
    """Create a recording by generating functions that repeat the calls.

    Args:
        parts: One part, or two if the recording was cut.
        views: Calls that create views of roles, made once for each pack.
        of_any_pack: See `Recording`.
    """
    first, *rest = parts
    if not rest:
        return Recording(of_any_pack, _written(first, views, [], []), None)
    (second,) = rest
    defined = {*first.inputs, *(name for call in first.calls for name in call.results)}
    used = {*_used(second), *(name for name in second.outputs if name is not None)}
    saved = sorted(defined & used)
    return Recording(of_any_pack, _written(first, views, saved, []), _written(second, views, None, saved))


def _written(
    part: TapePart, views: Sequence[RecordedCall], saved: Sequence[str] | None, passed: Sequence[str]
) -> _Function:
    """Generate a function that makes a part's calls and releases each tensor after its last use.

    Args:
        part: The calls.
        views: Calls that are made once, on permanent memory.
        saved: Names that it returns in a second list, after the outputs; None: no second list.
        passed: Names that it receives in a list before the arguments; empty: no list.
    """
    constants: dict[str, Any] = {}
    passing = {*part.inputs, *passed, *(name for call in part.calls for name in call.results)}
    staying = {*(name for name in part.outputs if name is not None), *(saved or ())}
    last = {name: number for number, call in enumerate(part.calls) for name in _names((call.args, call.kwargs))}
    lines = [
        *(_line(view, constants) for view in views),
        f"def run({', '.join((['passed'] if saved is None else []) + list(part.inputs))}):",
    ]
    if saved is None and passed:
        lines += [f" {', '.join(passed)}, = passed", " passed.clear()"]
    for number, call in enumerate(part.calls):
        lines.append(f" {_line(call, constants)}")
        mentioned = {*_names((call.args, call.kwargs)), *(name for name in call.results if name != "_")}
        over = sorted(name for name in (mentioned & passing) - staying if last.get(name, number) <= number)
        if over:
            lines.append(f" del {', '.join(over)}")
    outputs = ", ".join("None" if name is None else name for name in part.outputs)
    lines.append(f" return [{outputs}]" if saved is None else f" return [{outputs}], [{', '.join(saved)}]")
    return _Function(_code("\n".join(lines)), constants)


def _line(call: RecordedCall, constants: dict[str, Any]) -> str:
    arguments = [_text(argument, constants) for argument in call.args]
    arguments += [f"{name}={_text(argument, constants)}" for name, argument in call.kwargs.items()]
    results = "".join(f"{name}, " for name in call.results) if call.unpacked else call.results[0]
    return f"{results}{'= ' if results else ''}{_text(call.run, constants)}({', '.join(arguments)})"


def _text(value: Any, constants: dict[str, Any]) -> str:
    """Return a value as source text, or the name of a new constant for it."""
    if isinstance(value, Name):
        return value.name
    if value is None or isinstance(value, bool | int):
        return repr(value)
    if isinstance(value, list | tuple) and any(True for _ in _names(value)):
        return f"[{', '.join(_text(item, constants) for item in value)}]"
    name = f"c{len(constants)}"
    constants[name] = value
    return name


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, Name):
        yield value.name
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _names(item)
    elif isinstance(value, dict):
        yield from _names(tuple(value.values()))


def _used(part: TapePart) -> Iterator[str]:
    for call in part.calls:
        yield from _names((call.args, call.kwargs))


@functools.lru_cache(_MOST_TEXTS)
def _code(text: str) -> types.CodeType:
    """Compile a function's source text; cached, because packs of different sizes share it."""
    return compile(text, "<tape>", "exec")
