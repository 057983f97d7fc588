"""A computation as the list of what torch calls in it, to make it again without the Python that led there.

A step of a small model is fifty calls of a few microseconds, and as much again for each in modules, in autograd, and in
the choice of a rule for lanes. Its calls are the same in each step. So the first step of a kind is recorded beneath all
of these, and those that follow make the very same calls, in the same order, on tensors of the same shapes and strides:
the same kernels, and so the same bits.

What may differ from step to step are the numbers in tensors, and nothing else. Where torch gives Python a number, or a
shape that depends on numbers, nothing is said of the next step, and there is no tape.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Recorder", "Tape"]

_MOST_BYTES = 2**28
"""Of what a recording keeps: more is no small model, of which there would be little to gain."""
_MOST_TEXTS = 256
"""Of functions that are kept compiled."""
_FOLLOWS_NUMBERS = frozenset((torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output, torch.Tag.inplace_view))
_aten = torch.ops.aten
_MAYBE_THE_SAME = frozenset((_aten.detach.default, _aten.alias.default, _aten.view.default, _aten.expand.default))
"""What may give just what it is given."""
_LIFT = _aten.lift_fresh.default
"""What torch makes a tensor of numbers in the code with."""


@dataclass(frozen=True, slots=True)
class Tape:
    """What was recorded.

    Attributes:
        forward: From the inputs to the outputs and what `backward` needs.
        backward: From that, which it uses up, and what came in at the cut to the results; None where nothing was cut.
    """

    forward: Callable[..., tuple[list[Tensor], list[Tensor]]]
    backward: Callable[..., list[Tensor | None]] | None


@dataclass(slots=True)
class _Call:
    run: Callable[..., Any]
    args: Sequence[Any]
    kwargs: dict[str, Any]
    results: list[str]
    unpacked: bool
    """What it gives is a sequence."""


@dataclass(slots=True)
class _Part:
    """The calls before the cut, or those after it."""

    inputs: list[str]
    calls: list[_Call] = field(default_factory=list)
    outputs: list[str | None] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Name:
    """Stands for a tensor that differs from step to step."""

    name: str


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records what torch calls while it is entered.

    Args:
        inputs: What differs from step to step. All other tensors are taken as they are: the same memory, whatever is in
            it by then.

    Attributes:
        repeatable: Whether the calls say all of it.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.repeatable = True
        self._kept: list[Tensor] = []
        """So that no other tensor gets an id or memory that is known."""
        self._names: dict[int, str] = {}
        self._memory: set[int] = set()
        self._constants: dict[int, Tensor] = {}
        self._literals: set[int] = set()
        """Those of them that each step would make anew, so that none must be changed."""
        self._bytes = 0
        self._parts: list[_Part] = []
        self._begin(inputs)

    def cut(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        """End the first part, and begin the second.

        Args:
            outputs: Of the first.
            inputs: Of the second, beside what it has of the first.
        """
        self._end(outputs)
        self._begin(inputs)

    def tape(self, outputs: Sequence[Tensor | None]) -> Tape | None:
        """Give what was recorded; None where it isn't repeatable.

        Args:
            outputs: Of the last part.
        """
        self._end(outputs)
        if not self.repeatable:
            return None
        first, second = self._parts if len(self._parts) == 2 else (self._parts[0], None)
        if second is None:
            return Tape(_compiled(first, first.inputs, [], []), None)
        made = {*first.inputs, *(name for call in first.calls for name in call.results)}
        used = {*_used(second), *(name for name in second.outputs if name is not None)}
        kept = sorted(made & used)
        return Tape(_compiled(first, first.inputs, kept, []), _compiled(second, second.inputs, None, kept))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch, and write it down."""
        result = func(*args, **(kwargs or {}))
        if self.repeatable:
            self._write_down(func, args, kwargs or {}, result)
        return result

    def _begin(self, inputs: Sequence[Tensor]) -> None:
        self._parts.append(_Part([self._name(tensor) for tensor in inputs]))

    def _end(self, outputs: Sequence[Tensor | None]) -> None:
        names = [None if one is None else self._names.get(id(one)) for one in outputs]
        if any(name is None and one is not None for name, one in zip(names, outputs, strict=True)):
            self._give_up()
        self._parts[-1].outputs = names

    def _give_up(self) -> None:
        self.repeatable = False
        self._kept.clear()

    def _name(self, tensor: Tensor) -> str:
        """Name a tensor that differs from step to step."""
        self._keep(tensor)
        self._memory.add(tensor.untyped_storage().data_ptr())
        return self._names.setdefault(id(tensor), f"v{len(self._kept)}")

    def _keep(self, tensor: Tensor) -> None:
        self._kept.append(tensor)
        self._bytes += tensor.nbytes
        if self._bytes > _MOST_BYTES:
            self._give_up()

    def _write_down(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        given = [*_tensors((args, kwargs))]
        if _follows_numbers(func, given) or any(one.layout != torch.strided for one in (*given, *_tensors(result))):
            return self._give_up()
        arguments, keywords = self._named(args), self._named(kwargs)
        if any(id(one) not in self._names and id(one) not in self._constants for one in given):
            return self._give_up()
        if func in _MAYBE_THE_SAME and id(args[0]) in self._names and _alike(args[0], result):
            self._keep(result)
            self._names[id(result)] = self._names[id(args[0])]
            return None
        if not self._literals.isdisjoint(map(id, _changed(func, args))):
            return self._give_up()
        unpacked = isinstance(result, tuple | list)
        results = result if unpacked else [result]
        if not all(one is None or isinstance(one, Tensor) for one in results):
            return self._give_up()  # a number is read
        if (_is_view(func) or func is _LIFT) and not any(id(one) in self._names for one in given):
            for one in results:  # of memory that stays
                self._constants[id(one)] = one
            if func is _LIFT or not self._literals.isdisjoint(map(id, given)):
                self._literals.update(map(id, results))
            return None
        known = [one is None or id(one) in self._names or id(one) in self._constants for one in results]
        names = ["_" if old else self._name(one) for one, old in zip(results, known, strict=True)]
        self._parts[-1].calls.append(_Call(func._op, arguments, keywords, names, unpacked))
        return None

    def _named(self, value: Any) -> Any:
        """Give arguments with names in the place of tensors that differ from step to step."""
        if isinstance(value, Tensor):
            if id(value) in self._names:
                return _Name(self._names[id(value)])
            # One that isn't known and lies where a known one does came from it by a way that was not seen.
            if value.untyped_storage().data_ptr() not in self._memory:
                self._constants[id(value)] = value
            return value
        if isinstance(value, list | tuple):
            return type(value)(self._named(one) for one in value)
        if isinstance(value, dict):
            return {name: self._named(one) for name, one in value.items()}
        return value


def _follows_numbers(func: Any, given: Sequence[Tensor]) -> bool:
    """Whether the shape of what a call gives, or what comes after it, may depend on numbers in tensors."""
    if func is _aten.index.Tensor:
        return any(one.dtype in (torch.bool, torch.uint8) for one in given[1:])
    return func is _aten._pack_padded_sequence.default or not _FOLLOWS_NUMBERS.isdisjoint(func.tags)


def _is_view(func: Any) -> bool:
    returned = func._schema.returns
    return not func._schema.is_mutable and any(one.alias_info is not None for one in returned)


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors that share memory are laid out alike in it."""
    of_each = [(made.shape, made.stride(), made.storage_offset(), made.dtype) for made in (one, other)]
    return of_each[0] == of_each[1]


def _changed(func: Any, args: Sequence[Any]) -> Iterator[Tensor]:
    """Give the tensors that a call changes in place."""
    if func._schema.is_mutable:
        for declared, given in zip(func._schema.arguments, args, strict=False):
            if declared.alias_info is not None and declared.alias_info.is_write:
                yield from _tensors(given)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, _Name):
        yield value.name
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _names(one)
    elif isinstance(value, dict):
        yield from _names(tuple(value.values()))


def _used(part: _Part) -> Iterator[str]:
    for call in part.calls:
        yield from _names((call.args, call.kwargs))


def _compiled(
    part: _Part, inputs: Sequence[str], kept: Sequence[str] | None, given: Sequence[str]
) -> Callable[..., Any]:
    """Write a function that makes a part's calls, and lets go of each tensor once it isn't needed any more.

    Args:
        part: The calls.
        inputs: Names of its arguments.
        kept: What it gives beside the outputs; None: nothing, and no place for it.
        given: What comes in a list before the arguments; none: no list.
    """
    constants: dict[str, Any] = {}

    def written(value: Any) -> str:
        if isinstance(value, _Name):
            return value.name
        if value is None or isinstance(value, bool | int):
            return repr(value)
        if isinstance(value, list | tuple) and any(True for _ in _names(value)):
            inner = ", ".join(map(written, value))
            return f"[{inner}]"
        name = f"c{len(constants)}"
        constants[name] = value
        return name

    staying = {*(name for name in part.outputs if name is not None), *(kept or ())}
    last = {name: number for number, call in enumerate(part.calls) for name in _names((call.args, call.kwargs))}
    lines = [f"def run({', '.join((['given'] if kept is None else []) + list(inputs))}):"]
    if kept is None and given:
        lines += [f" {', '.join(given)}, = given", " given.clear()"]
    for number, call in enumerate(part.calls):
        arguments = [*map(written, call.args), *(f"{name}={written(one)}" for name, one in call.kwargs.items())]
        results = "".join(f"{name}, " for name in call.results) if call.unpacked else call.results[0]
        lines.append(f" {results}{'= ' if results else ''}{written(call.run)}({', '.join(arguments)})")
        mentioned = {*_names((call.args, call.kwargs)), *(name for name in call.results if name != "_")}
        over = sorted(name for name in mentioned - staying if last.get(name, number) <= number)
        if over:
            lines.append(f" del {', '.join(over)}")
    outputs = ", ".join("None" if name is None else name for name in part.outputs)
    lines.append(f" return [{outputs}]" if kept is None else f" return [{outputs}], [{', '.join(kept)}]")
    scope = dict(constants)
    exec(_code("\n".join(lines)), scope)
    run: Callable[..., Any] = scope["run"]
    return run


@functools.lru_cache(_MOST_TEXTS)
def _code(text: str) -> types.CodeType:
    """Compile a function's text, which packs of other sizes have in common."""
    return compile(text, "<tape>", "exec")
