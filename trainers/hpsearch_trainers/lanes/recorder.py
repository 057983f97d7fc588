"""Records torch's operator calls so that they can be played again: see `tape`.

Only the values of tensors may differ between steps. If a step reads a number from a tensor, or has a shape that depends
on values, it can't be recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hpsearch_trainers.lanes.tape import Name, RecordedCall, Recording, TapePart, recording_of, role_name

_NAMESPACES = (torch._C._VariableFunctions, torch._C._nn, torch._C.TensorBase)
_MAX_CACHED = 4096

_cache: dict[Hashable, Callable[..., Any]] = {}
"""The fastest function by operator and kinds of arguments; finding it costs as much as ten calls."""


def fastest_function(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Callable[..., Any]:
    """Return the function that calls an operator with the least overhead.

    A torch function selects an operator's overload by its arguments. So each candidate is called with these arguments,
    and is used only if it calls exactly this overload with the same arguments.

    Args:
        func: An overload of an operator.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
        result: Result of the call, which is returned instead of computing again.
    """
    key = func, _kind(args), _kind(kwargs)
    if (function := _cache.get(key)) is None:
        if len(_cache) >= _MAX_CACHED:
            _cache.clear()
        function = _cache[key] = _look_up(func, args, kwargs, result)
    return function


def _kind(value: Any) -> Hashable:
    """Return the kind of an argument, as far as the selection of an overload may depend on it."""
    if isinstance(value, Tensor):
        return type(value), value.dim(), value.dtype, value.device, value.layout
    if isinstance(value, list | tuple):
        return type(value), *map(_kind, value)
    if isinstance(value, dict):
        return tuple((name, _kind(item)) for name, item in value.items())
    if isinstance(value, bool | int | str):
        return type(value), value
    kind: type = type(value)
    return kind


def _look_up(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Callable[..., Any]:
    name = func._schema.name.partition("::")[2]
    for namespace in _NAMESPACES:
        function: Callable[..., Any] | None = getattr(namespace, name, None)
        if function is not None and _calls(function, func, args, kwargs, result):
            return function
    operator: Callable[..., Any] = func._op
    return operator


def _calls(function: Callable[..., Any], func: Any, args: Any, kwargs: Any, result: Any) -> bool:
    log = _CallLog(result)
    try:
        with torch.no_grad(), log:
            function(*args, **kwargs)
    except (TypeError, RuntimeError):  # it doesn't accept these arguments
        return False
    return (
        len(log.calls) == 1
        and log.calls[0][0] is func
        and _equal_arguments(log.calls[0][1:], (tuple(args), dict(kwargs)))
    )


class _CallLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Logs calls, and returns a given result instead of computing."""

    def __init__(self, result: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, Any, Any]] = []
        self._result = result

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append((func, tuple(args), kwargs or {}))
        return self._result


def _equal_arguments(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor) or isinstance(second, Tensor):
        return first is second
    if isinstance(first, list | tuple):
        return (
            isinstance(second, list | tuple) and len(first) == len(second) and all(map(_equal_arguments, first, second))
        )
    if isinstance(first, dict):
        return (
            isinstance(second, dict)
            and first.keys() == second.keys()
            and all(_equal_arguments(first[key], second[key]) for key in first)
        )
    return type(first) is type(second) and bool(first == second)


_MOST_BYTES = 2**28
"""Maximum bytes that a recording keeps. Larger models gain little from a recording."""
_FOLLOWS_NUMBERS = frozenset((torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output, torch.Tag.inplace_view))
_aten = torch.ops.aten
_MAYBE_THE_SAME = frozenset((_aten.detach.default, _aten.alias.default, _aten.view.default, _aten.expand.default))
"""Operators that may return their input itself."""
_LIFT = _aten.lift_fresh.default
"""The operator by which torch creates a tensor from numbers in the code."""

_Result = TypeVar("_Result", Tensor, tuple[Tensor, Tensor])

_entered: list[Recorder] = []


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records torch's operator calls within its context.

    Args:
        inputs: Tensors that differ between steps. All other tensors are used by reference, with their current values.
        roles: Objects specific to this pack; another pack's roles have the same order.

    Attributes:
        repeatable: Whether the recorded calls describe the computation completely.
    """

    def __init__(self, inputs: Sequence[Tensor], roles: Sequence[object] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.repeatable = True
        self._paused = False
        self._of_any_pack = True
        self._references: list[object] = [*roles]
        """Objects that are kept alive so that their ids and memory aren't reused."""
        self._names: dict[int, str] = {}
        """Names of tensors that differ between steps, by id."""
        self._memory: set[int] = set()
        self._constants: dict[int, Tensor] = {}
        """Tensors that are the same in each step, by id."""
        self._literals: set[int] = set()
        """Ids of constants that each step would create anew, so they must not be changed in place."""
        self._of_roles: dict[int, Name] = {}
        """The names of roles, and of views of them, by id."""
        self._of_memory: dict[Hashable, Name] = {}
        self._views: list[RecordedCall] = []
        self._bytes = 0
        self._parts: list[TapePart] = []
        for number, role in enumerate(roles):
            self._name_for_packs(role, Name(role_name(number)))
        self._begin(inputs)

    def __enter__(self) -> Self:
        """Start or resume recording."""
        _entered.append(self)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        """Pause recording."""
        _entered.remove(self)
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def cut(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        """End the first part, and start the second.

        Args:
            outputs: Outputs of the first part.
            inputs: Inputs of the second part, in addition to tensors of the first.
        """
        self._end(outputs)
        self._begin(inputs)

    def recording(self, outputs: Sequence[Tensor | None]) -> Recording | None:
        """Return the recording, or None if it isn't repeatable.

        Args:
            outputs: Outputs of the last part.
        """
        self._end(outputs)
        return recording_of(self._parts, self._views, of_any_pack=self._of_any_pack) if self.repeatable else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a torch operator, and record the call."""
        result = func(*args, **(kwargs or {}))
        if self.repeatable and not self._paused:
            self._record(func, args, kwargs or {}, result)
        return result

    def record_as_one(self, run: Callable[..., _Result], args: Sequence[Any]) -> _Result:
        """Call one of our functions, and record it as a single call."""
        self._paused = True
        try:
            result: _Result = run(*args)
        finally:
            self._paused = False
        if self.repeatable:
            arguments = self._with_names(args)
            if not self._are_known(_tensors(args)):
                self._abandon()
            names = [*map(self._name, _tensors(result))]
            self._parts[-1].calls.append(RecordedCall(run, arguments, {}, names, isinstance(result, tuple)))
        return result

    def _begin(self, inputs: Sequence[Tensor]) -> None:
        self._parts.append(TapePart([self._name(tensor) for tensor in inputs]))

    def _end(self, outputs: Sequence[Tensor | None]) -> None:
        names = [None if output is None else self._names.get(id(output)) for output in outputs]
        if any(name is None and output is not None for name, output in zip(names, outputs, strict=True)):
            self._abandon()
        self._parts[-1].outputs = names

    def _abandon(self) -> None:
        self.repeatable = False
        self._references.clear()

    def _name(self, tensor: Tensor) -> str:
        """Name a tensor that differs between steps."""
        self._reference(tensor)
        self._memory.add(tensor.untyped_storage().data_ptr())
        return self._names.setdefault(id(tensor), f"v{len(self._references)}")

    def _name_for_packs(self, role: object, name: Name) -> None:
        """Name a role, or a view of one."""
        if isinstance(role, Tensor):
            self._constants[id(role)] = role
            if role.numel() > 0:
                name = self._of_memory.setdefault(memory_of(role), name)
        self._of_roles.setdefault(id(role), name)

    def _reference(self, tensor: Tensor) -> None:
        self._references.append(tensor)
        self._bytes += tensor.nbytes
        if self._bytes > _MOST_BYTES:
            self._abandon()

    def _are_known(self, tensors: Iterator[Tensor] | Sequence[Tensor]) -> bool:
        return all(id(tensor) in self._names or id(tensor) in self._constants for tensor in tensors)

    def _record(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        tensors = [*_tensors((args, kwargs))]
        if _follows_numbers(func, tensors) or any(
            value.layout != torch.strided for value in (*tensors, *_tensors(result))
        ):
            return self._abandon()
        if func is _LIFT:
            self._literals.update(map(id, tensors))
        arguments, keywords = self._with_names(args), self._with_names(kwargs)
        if not self._are_known(tensors):
            return self._abandon()
        if func in _MAYBE_THE_SAME and id(args[0]) in self._names and _same_layout(args[0], result):
            self._reference(result)
            self._names[id(result)] = self._names[id(args[0])]
            return None
        if not self._literals.isdisjoint(map(id, _changed(func, args))):
            return self._abandon()
        unpacked = isinstance(result, tuple | list)
        results = result if unpacked else [result]
        if not all(value is None or isinstance(value, Tensor) for value in results):
            return self._abandon()  # it reads a number from a tensor
        if (_is_view(func) or func is _LIFT) and not any(id(value) in self._names for value in tensors):
            return self._record_constant(RecordedCall(func._op, arguments, keywords, [], unpacked), tensors, results)
        run = fastest_function(func, args, kwargs, result)
        is_known = [value is None or id(value) in self._names or id(value) in self._constants for value in results]
        names = ["_" if old else self._name(value) for value, old in zip(results, is_known, strict=True)]
        self._parts[-1].calls.append(RecordedCall(run, arguments, keywords, names, unpacked))
        return None

    def _record_constant(self, call: RecordedCall, tensors: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """Record a view of permanent memory, or a tensor of numbers in the code, as a constant."""
        for tensor in results:
            self._constants[id(tensor)] = tensor
        if not self._literals.isdisjoint(map(id, tensors)):
            self._literals.update(map(id, results))
        elif all(id(tensor) in self._of_roles for tensor in tensors):
            call.results = [f"s{len(self._views)}_{number}" for number in range(len(results))]
            self._views.append(call)
            for tensor, name in zip(results, call.results, strict=True):
                self._name_for_packs(tensor, Name(name))

    def _with_names(self, value: Any) -> Any:
        """Return arguments in which names replace objects that differ between steps or packs."""
        if id(value) in self._of_roles:
            return self._of_roles[id(value)]
        if isinstance(value, Tensor):
            return self._with_name(value)
        if type(value) in (list, tuple):
            return type(value)(self._with_names(item) for item in value)
        if type(value) is dict:
            return {name: self._with_names(item) for name, item in value.items()}
        return value

    def _with_name(self, tensor: Tensor) -> Any:
        if id(tensor) in self._names:
            return Name(self._names[id(tensor)])
        # An unknown tensor with the memory of a known one was derived from it by an unrecorded call.
        if tensor.untyped_storage().data_ptr() in self._memory:
            return tensor
        self._constants[id(tensor)] = tensor
        if tensor.numel() > 0 and memory_of(tensor) in self._of_memory:  # torch's own second object for a role
            self._of_roles[id(tensor)] = self._of_memory[memory_of(tensor)]
            return self._of_roles[id(tensor)]
        self._of_any_pack = self._of_any_pack and id(tensor) in self._literals
        return tensor


def as_one_call(run: Callable[..., _Result], *args: Any) -> _Result:
    """Call a function that a recorder records as a single call. A tape calls it with the arguments of that step.

    Args:
        run: Returns new tensors without gradients.
        *args: Tensors, roles and plain values.
    """
    return _entered[-1].record_as_one(run, args) if _entered else run(*args)


def memory_of(tensor: Tensor) -> Hashable:
    """Return a key of a non-empty tensor's memory, shape and strides."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _follows_numbers(func: Any, tensors: Sequence[Tensor]) -> bool:
    """Return whether the shape of a call's result, or later code, may depend on values of tensors."""
    if func is _aten.index.Tensor:
        return any(tensor.dtype in (torch.bool, torch.uint8) for tensor in tensors[1:])
    return func is _aten._pack_padded_sequence.default or not _FOLLOWS_NUMBERS.isdisjoint(func.tags)


def _is_view(func: Any) -> bool:
    returned = func._schema.returns
    return not func._schema.is_mutable and any(value.alias_info is not None for value in returned)


def _same_layout(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors that share memory have the same offset, shape and strides."""
    layouts = [(tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype) for tensor in (first, second)]
    return layouts[0] == layouts[1]


def _changed(func: Any, args: Sequence[Any]) -> Iterator[Tensor]:
    """Yield the tensors that a call changes in place."""
    if func._schema.is_mutable:
        for declared, argument in zip(func._schema.arguments, args, strict=False):
            if declared.alias_info is not None and declared.alias_info.is_write:
                yield from _tensors(argument)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))
