"""Tensors that stand for one of each lane, so that a model written for one trial computes many.

A `LaneTensor` has the shape of one lane's tensor, and holds those of all. torch hands each of its functions that meets
one to `__torch_function__`. By default the function is then called lane by lane, on tensors with the very shape and
strides that it would meet in a trial run alone: so it gives the very same bits. Functions that are known to give each
lane's bits when they compute all lanes at once have a rule that does so: see `rule`. Packs that may round have more of
them: see `rounded_rule`.

    x of one lane: (rows, 64)        relu(x)           one call for all lanes, by a rule
    of all:        (lanes, rows, 64) conv2d(x, w, b)   a call for each lane

What can't be right for all lanes raises `NotFusible`: numbers read from a tensor (`.item()`, a branch on data), shapes
that depend on values, a tensor of all lanes' that each lane would change.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from hpsearch_trainers.lanes.errors import NotFusible
from hpsearch_trainers.lanes.noise import Noise

_Rule = Callable[..., Any]
_AnyRule = TypeVar("_AnyRule", bound=_Rule)

_RULES: dict[Any, _Rule] = {}
"""By torch's function, what computes it for all lanes at once: given the function and its arguments, it answers
NotImplemented where it can't."""
_ROUNDED_RULES: dict[Any, _Rule] = {}
"""The same for what rounds otherwise than each lane alone."""

_SHAPE_QUERIES = {
    getattr(Tensor, name).__get__
    for name in (
        *("shape", "ndim", "dtype", "device", "layout", "requires_grad", "itemsize", "nbytes"),
        *("is_cuda", "is_cpu", "is_meta", "is_mps", "is_sparse", "is_quantized", "is_nested", "is_mkldnn", "is_xpu"),
    )
} | {
    *(Tensor.size, Tensor.dim, Tensor.ndimension, Tensor.numel, Tensor.nelement, Tensor.__len__, Tensor.stride),
    *(Tensor.element_size, Tensor.get_device, Tensor.is_contiguous, Tensor.is_floating_point, Tensor.is_complex),
    *(Tensor.is_signed, Tensor.__hash__, torch.numel, torch.is_floating_point, torch.is_complex, torch.is_tensor),
    *(torch.is_same_size,),
}
"""What is the same of each lane, and asked of one."""


class PerLane(list[Any]):
    """A setting with a value for each lane, in the place of a module's own."""


class Generators(list[torch.Generator]):
    """A random generator for each lane of a pack.

    Attributes:
        rounded: Whether what is computed for all lanes at once may round otherwise than for each alone.
        noise: What draws for all lanes at once, and not the generators: where a call costs more than what it computes,
            as on a GPU, so that whatever can be is computed for all lanes in one. None: each lane's own generator does.
    """

    def __init__(
        self, generators: Iterable[torch.Generator], *, rounded: bool = False, noise: Noise | None = None
    ) -> None:
        super().__init__(generators)
        self.rounded = rounded
        self.noise = noise


class LaneTensor(torch.Tensor):
    """One tensor of each lane, all of one shape and dtype.

    It holds them as one tensor whose first dimension counts the lanes, or as one tensor each until somebody asks for
    the other form.

    Attributes:
        generators: A random generator of each lane.
        owned: Whether both forms are the same memory for good: a parameter or a buffer of the lanes' models.
        aliased: Whether another one may lie in the same memory, so that to change one would change the other.
    """

    generators: Generators
    owned: bool
    aliased: bool
    _stack: Tensor | None
    _slices: Sequence[Tensor] | None

    @staticmethod
    def of_stack(stack: Tensor, generators: Generators, *, aliased: bool = False) -> LaneTensor:
        """Make it of a tensor (lanes, ...)."""
        return _wrapped(stack, None, stack.shape[1:], stack.stride()[1:], stack, generators, aliased=aliased)

    @staticmethod
    def of_slices(slices: Sequence[Tensor], generators: Generators) -> LaneTensor:
        """Make it of a tensor of each lane, of equal shape and dtype."""
        first = slices[0]
        return _wrapped(None, slices, first.shape, first.stride(), first, generators)

    @staticmethod
    def of_owned(stack: Tensor, slices: Sequence[Tensor], generators: Generators) -> LaneTensor:
        """Make it of what the lanes' models keep: a tensor of each, which is a part of the stack's memory."""
        tensor = _wrapped(stack, slices, stack.shape[1:], stack.stride()[1:], stack, generators)
        tensor.owned = True
        return tensor

    @staticmethod
    def of_parameter(stack: Tensor, generators: Generators) -> LaneTensor:
        """Make it of what a gradient is wanted of, (lanes, ...); slices are then a part of each graph."""
        tensor = LaneTensor.of_stack(stack, generators)
        tensor.owned = True
        return tensor

    @property
    def is_stack(self) -> bool:
        """Whether it holds them as one tensor."""
        return self._stack is not None

    @property
    def stack(self) -> Tensor:
        """All of them: (lanes, ...)."""
        if self._stack is not None:
            return self._stack
        assert self._slices is not None
        stack = _stacked(self._slices)
        if torch.is_grad_enabled() or not self.requires_grad:  # else what follows would lose the gradient
            # From here on the slices are parts of it: two copies could come to differ.
            self._stack, self._slices = stack, None
        return stack

    @property
    def slices(self) -> Sequence[Tensor]:
        """One of each lane, for one use of it.

        Alone, the gradients that a tensor's uses give are added up in the order of the uses. So each use has slices of
        its own, whose gradients come back by themselves.
        """
        if self._slices is not None:
            return self._slices
        assert self._stack is not None
        slices = self._stack.unbind()
        if not self.requires_grad:
            self._slices = slices
        return slices

    def become(self, source: LaneTensor) -> LaneTensor:
        """Hold what another one does, after an operation in place.

        Raises:
            NotFusible: Another one may lie in the same memory.
        """
        self.check_changeable()
        self._stack, self._slices = source._stack, source._slices
        return self

    def check_changeable(self) -> None:
        """Refuse a change in place that can't be followed.

        Raises:
            NotFusible: Others would have to change with it, or its gradient would have to stay as it is.
        """
        if self.requires_grad and not torch.is_grad_enabled():
            raise NotFusible("its model changes a tensor in place of which a gradient is wanted, without gradients")
        if self.aliased and not self.owned:
            raise NotFusible("its model changes a tensor in place that another one is a view of")

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Compute a function of torch for all lanes."""
        kwargs = dict(kwargs or {})
        if not args and "input" in kwargs:  # as torch names the first argument of nearly all
            args = (kwargs.pop("input"),)
        for rules in (_RULES, _ROUNDED_RULES):
            compute = rules.get(func)
            if compute is not None and (not kwargs or _takes(compute, func, args, kwargs)):
                try:
                    result = compute(func, *args, **kwargs)
                except _Scattered:
                    result = NotImplemented
                if result is not NotImplemented:
                    return result
        if func in _SHAPE_QUERIES:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        return _lane_by_lane(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Refuse what has passed `__torch_function__` by: it would compute with a tensor that has no values."""
        raise NotFusible(f"its model reaches {func} by a way that lanes can't follow")

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """Return what it is; it has no values of its own."""
        return f"LaneTensor({len(self.generators)} lanes of {tuple(self.shape)})"


class _Scattered(Exception):
    """Slices lie in memory as no part of a stack can."""


@functools.cache
def _signature(compute: _Rule) -> inspect.Signature:
    return inspect.signature(compute)


def _takes(compute: _Rule, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a rule has parameters of these names: it may name some otherwise than torch's function does."""
    try:
        _signature(compute).bind(func, *args, **kwargs)
    except TypeError:
        return False
    return True


def _stacked(slices: Sequence[Tensor]) -> Tensor:
    """Stack tensors, each of which lies within the stack as it lies by itself.

    How a tensor lies doesn't change its values, but decides what torch makes of it: it adds a layer's bias to a
    product of matrices in one way or in another, and lays out what comes of an operation as its operands are.

    Raises:
        _Scattered: There are gaps in them, or numbers that lie in several places at once.
    """
    first = slices[0]
    if first.is_contiguous():
        return torch.stack(list(slices))
    order = sorted(range(first.dim()), key=lambda dim: (-first.stride()[dim], dim))
    permuted = [tensor.permute(order) for tensor in slices]
    if not permuted[0].is_contiguous():
        raise _Scattered
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return torch.stack(permuted).permute(0, *(1 + dim for dim in inverse))


def rule(*functions: Any) -> Callable[[_AnyRule], _AnyRule]:
    """Make a function the rule for some of torch's, which computes them for all lanes at once with the bits of each.

    It is given torch's function and its arguments, and answers NotImplemented where it can't.
    """

    def register(function: _AnyRule) -> _AnyRule:
        _RULES.update(dict.fromkeys(functions, function))
        return function

    return register


def rounded_rule(*functions: Any) -> Callable[[_AnyRule], _AnyRule]:
    """Make a function the rule for some of torch's in packs that may round, where there is none with bits.

    Each lane's part of what it gives must depend neither on the lane's place nor on what the others hold.
    """

    def register(function: _AnyRule) -> _AnyRule:
        @functools.wraps(function)
        def in_rounded_packs(func: Any, *args: Any, **kwargs: Any) -> Any:
            lanes = next((argument for argument in args if isinstance(argument, LaneTensor)), None)
            return function(func, *args, **kwargs) if lanes is not None and lanes.generators.rounded else NotImplemented

        _ROUNDED_RULES.update(dict.fromkeys(functions, in_rounded_packs))
        return function

    return register


def _wrapped(
    stack: Tensor | None,
    slices: Sequence[Tensor] | None,
    shape: Any,
    strides: Any,
    like: Tensor,
    generators: Generators,
    *,
    aliased: bool = False,
) -> LaneTensor:
    tensor: LaneTensor = torch.Tensor._make_wrapper_subclass(
        LaneTensor, shape, strides, dtype=like.dtype, device=like.device, requires_grad=like.requires_grad
    )
    tensor._stack, tensor._slices, tensor.generators = stack, slices, generators
    tensor.owned, tensor.aliased = False, aliased
    return tensor


def _lane_by_lane(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if getattr(func, "__name__", "") == "__set__":
        raise NotFusible("its model puts another tensor in the place of one's data or gradient")

    def call(_: int, arguments: tuple[Sequence[Any], dict[str, Any]]) -> Any:
        return func(*arguments[0], **arguments[1])

    return by_lane(call, (tuple(args), kwargs), _name(func))


def by_lane(compute: Callable[[int, Any], Any], value: Any, name: str = "a module") -> Any:
    """Compute something of each lane's part of a value, one after the other.

    Args:
        compute: Given a lane's number and its part.
        value: Has a LaneTensor in it, itself or within lists, tuples and dictionaries.
        name: What is computed, for the reason.

    Raises:
        NotFusible: It gives something else than tensors, or changes what it must not.
    """
    leaves = leaves_of(value)
    lane_values = split_lanes(value, next(len(leaf.generators) for leaf in leaves if isinstance(leaf, LaneTensor)))
    pairs = zip(leaves, leaves_of(lane_values[0]), strict=True)
    used = [(leaf, first) for leaf, first in pairs if isinstance(leaf, Tensor)]
    versions = [first._version for _, first in used]
    results = [compute(lane, lane_value) for lane, lane_value in enumerate(lane_values)]
    changed = [tensor for (tensor, first), version in zip(used, versions, strict=True) if first._version != version]
    for tensor in changed:
        if not isinstance(tensor, LaneTensor):
            raise NotFusible(f"its model changes by {name} a tensor that is no parameter and no buffer")
        tensor.check_changeable()
    if changed and all(result is None for result in results):
        return None
    return _merged(name, results, used)


def split_lanes(value: Any, lanes: int) -> list[Any]:
    """Return each lane's part of a value: of a LaneTensor, also within lists and the like, its own tensor.

    What is one object stays one: attention looks whether query, key and value are.
    """
    parts = {id(leaf): leaf for leaf in leaves_of(value) if isinstance(leaf, LaneTensor | PerLane)}
    slices = {key: leaf.slices if isinstance(leaf, LaneTensor) else leaf for key, leaf in parts.items()}
    return [map_leaves(functools.partial(_of_lane, slices, lane), value) for lane in range(lanes)]


def _of_lane(slices: Mapping[int, Sequence[Any]], lane: int, leaf: Any) -> Any:
    return slices[id(leaf)][lane] if id(leaf) in slices else leaf


def map_leaves(change: Callable[[Any], Any], value: Any) -> Any:
    """Change all that lists, tuples and dictionaries have in them, or a value that is none of these.

    torch's own for that makes a circle of functions at each call, which Python's collector would have to find.
    """
    if type(value) in (list, tuple):
        return type(value)([map_leaves(change, item) for item in value])
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_leaves(change, item) for item in value))
    if type(value) is dict:
        return {name: map_leaves(change, item) for name, item in value.items()}
    return change(value)


def leaves_of(value: Any) -> list[Any]:
    """Return what lists, tuples and dictionaries have in them, in order."""
    leaves: list[Any] = []
    map_leaves(leaves.append, value)
    return leaves


def _merged(name: str, results: Sequence[Any], used: Sequence[tuple[Tensor, Tensor]]) -> Any:
    first = results[0]
    if isinstance(first, Tensor):
        for tensor, first_lane in used:
            if first is first_lane and isinstance(tensor, LaneTensor):  # as it is, or changed in place
                return tensor
        if any((result.shape, result.dtype) != (first.shape, first.dtype) for result in results):
            raise NotFusible(f"shapes that {name} gives depend on values")
        ours = [tensor for tensor, _ in used if isinstance(tensor, LaneTensor)]
        merged = LaneTensor.of_slices(results, ours[0].generators)
        memory = first.untyped_storage().data_ptr()
        for tensor, first_lane in used:
            if isinstance(tensor, LaneTensor) and memory == first_lane.untyped_storage().data_ptr():
                merged.aliased = tensor.aliased = True
        return merged
    if isinstance(first, list | tuple):
        if any(len(result) != len(first) for result in results):
            raise NotFusible(f"how many tensors {name} gives depends on values")
        items = [_merged(name, item, used) for item in zip(*results, strict=True)]
        for item in items:  # chunks of one tensor lie in one memory
            if isinstance(item, LaneTensor):
                item.aliased = True
        return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)
    if first is None and all(result is None for result in results):
        return None
    raise NotFusible(f"its model reads values by {name}")


def _name(func: Any) -> str:
    name = getattr(func, "__name__", str(func))
    owner = getattr(func, "__self__", None)
    return getattr(owner, "__name__", name) if name == "__get__" else name
