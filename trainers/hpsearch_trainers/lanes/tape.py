"""A computation as the list of what torch calls in it, to make it again without the Python that led there.

A step of a small model is fifty calls of a few microseconds, and as much again for each in modules, in autograd, and in
the choice of a rule for lanes. Its calls are the same in each step. So the first step of a kind is recorded beneath all
of these (see `recorder`), and those that follow make the very same calls, in the same order, on tensors of the same
shapes and strides: the same kernels, and so the same bits.

Another pack's step of that kind makes the same calls, too, on stacks, data and generators of its own. These are a
pack's *roles*: a recording has names for them, and becomes a tape when they are put in.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

_MOST_TEXTS = 256
"""Of functions that are kept compiled."""


@dataclass(frozen=True, slots=True)
class Tape:
    """A recording that can be played.

    Attributes:
        forward: From the inputs to the outputs and what `backward` needs.
        backward: From that, which it uses up, and what came in at the cut to the results; None where nothing was cut.
    """

    forward: Callable[..., tuple[list[Tensor], list[Tensor]]]
    backward: Callable[..., list[Tensor | None]] | None


@dataclass(frozen=True, slots=True)
class Name:
    """Stands for what differs from step to step, or from pack to pack."""

    name: str


@dataclass(slots=True)
class RecordedCall:
    """A call of a function."""

    run: Callable[..., Any]
    args: Sequence[Any]
    kwargs: dict[str, Any]
    results: list[str]
    unpacked: bool
    """What it gives is a sequence."""


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
        run: Callable[..., Any] = scope.pop("run")  # a function within its own scope is a circle
        return run


@dataclass(frozen=True, slots=True)
class Recording:
    """What was recorded.

    Attributes:
        of_any_pack: Whether all that it has kept of the pack it was recorded in are roles.
    """

    of_any_pack: bool
    _forward: _Function
    _backward: _Function | None

    def tape(self, roles: Sequence[object]) -> Tape:
        """Return it for these roles, which are in the order of those that it was recorded with."""
        named = {role_name(number): role for number, role in enumerate(roles)}
        return Tape(self._forward.bind(named), None if self._backward is None else self._backward.bind(named))


def role_name(number: int) -> str:
    """Return the name of a role in a recording."""
    return f"r{number}"


def recording_of(parts: Sequence[TapePart], views: Sequence[RecordedCall], *, of_any_pack: bool) -> Recording:
    """Write the functions that make what was recorded again.

    Args:
        parts: One, or two where it was cut.
        views: What gives parts of roles, once for each pack.
        of_any_pack: As in `Recording`.
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
    """Write a function that makes a part's calls, and releases each tensor after its last use.

    Args:
        part: The calls.
        views: Calls that are made once, on memory that lives from step to step.
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
    """Write a value, or the name of a constant that is it from now on."""
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
    """Compile a function's text, which packs of other sizes have in common."""
    return compile(text, "<tape>", "exec")
