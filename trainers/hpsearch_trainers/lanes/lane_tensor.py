"""Tensors that represent a tensor of each lane, so that a model written for one trial computes many trials.

A `LaneTensor` has the shape of one lane's tensor and holds the tensors of all lanes. torch passes each function call
with a LaneTensor to `__torch_function__`. By default the function is called for each lane, on tensors with the same
shape and strides as in a trial alone, so the results are equal bit for bit. Some functions also give equal bits when
they compute all lanes at once; for these there is a rule: see `rule`. Packs that may round have more rules: see
`rounded_rule`.

    x of one lane: (rows, 64)        relu(x)           one call for all lanes, by a rule
    of all:        (lanes, rows, 64) conv2d(x, w, b)   a call for each lane

Operations that can't be correct for all lanes raise `NotFusible`: reading numbers from a tensor (`.item()`, a branch on
data), shapes that depend on values, and in-place changes by each lane to a tensor that all lanes share.
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
"""Rules by torch function. A rule receives the function and its arguments and computes all lanes at once. It returns
NotImplemented if it can't."""
_ROUNDED_RULES: dict[Any, _Rule] = {}
"""Rules whose results may differ by rounding from those of each lane alone."""

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
"""Functions with the same result for each lane; only one lane is queried."""


class PerLane(list[Any]):
    """A module's setting with a value for each lane."""


class Generators(list[torch.Generator]):
    """A random generator for each lane of a pack.

    Attributes:
        rounded: Whether results of all lanes at once may differ by rounding from those of each alone.
        noise: Draws random numbers for all lanes in one call instead of the generators. Used if kernel launches
            dominate, as on a GPU. None: each lane's generator is used.
    """

    def __init__(
        self, generators: Iterable[torch.Generator], *, rounded: bool = False, noise: Noise | None = None
    ) -> None:
        super().__init__(generators)
        self.rounded = rounded
        self.noise = noise


class LaneTensor(torch.Tensor):
    """A tensor of each lane, all of the same shape and dtype.

    It holds them as a stack, whose first dimension is the lanes, or as a list with a tensor for each lane. One form is
    converted to the other on demand.

    Attributes:
        generators: Random generator of each lane.
        owned: Whether both forms permanently share memory, as for a parameter or a buffer of the lanes' models.
        aliased: Whether another LaneTensor may share its memory, so that changing one changes the other.
    """

    generators: Generators
    owned: bool
    aliased: bool
    _stack: Tensor | None
    _slices: Sequence[Tensor] | None

    @staticmethod
    def of_stack(stack: Tensor, generators: Generators, *, aliased: bool = False) -> LaneTensor:
        """Create a LaneTensor from a stack (lanes, ...)."""
        return _wrapped(stack, None, stack.shape[1:], stack.stride()[1:], stack, generators, aliased=aliased)

    @staticmethod
    def of_slices(slices: Sequence[Tensor], generators: Generators) -> LaneTensor:
        """Create a LaneTensor from a tensor of each lane, of equal shape and dtype."""
        first = slices[0]
        return _wrapped(None, slices, first.shape, first.stride(), first, generators)

    @staticmethod
    def of_owned(stack: Tensor, slices: Sequence[Tensor], generators: Generators) -> LaneTensor:
        """Create a LaneTensor from the tensors of the lanes' models, which are views of the stack."""
        tensor = _wrapped(stack, slices, stack.shape[1:], stack.stride()[1:], stack, generators)
        tensor.owned = True
        return tensor

    @staticmethod
    def of_parameter(stack: Tensor, generators: Generators) -> LaneTensor:
        """Create a LaneTensor from a stack (lanes, ...) that requires a gradient; slices become part of the graph."""
        tensor = LaneTensor.of_stack(stack, generators)
        tensor.owned = True
        return tensor

    @property
    def is_stack(self) -> bool:
        """Whether it holds a stack."""
        return self._stack is not None

    @property
    def stack(self) -> Tensor:
        """The tensors of all lanes as a stack, (lanes, ...)."""
        if self._stack is not None:
            return self._stack
        assert self._slices is not None
        stack = _stacked(self._slices)
        if torch.is_grad_enabled() or not self.requires_grad:  # otherwise later operations would lose the gradient
            # Drop the slices, which are recreated as views of the stack: two copies could diverge.
            self._stack, self._slices = stack, None
        return stack

    @property
    def slices(self) -> Sequence[Tensor]:
        """A tensor of each lane, for a single use.

        For a trainer alone, autograd adds the gradients of a tensor's uses in the order of the uses. So each use gets
        new slices, whose gradients are returned separately.
        """
        if self._slices is not None:
            return self._slices
        assert self._stack is not None
        slices = self._stack.unbind()
        if not self.requires_grad:
            self._slices = slices
        return slices

    def become(self, source: LaneTensor) -> LaneTensor:
        """Take the content of another LaneTensor, after an in-place operation.

        Raises:
            NotFusible: Another LaneTensor may share this one's memory.
        """
        self.check_changeable()
        self._stack, self._slices = source._stack, source._slices
        return self

    def check_changeable(self) -> None:
        """Check that the tensor may be changed in place.

        Raises:
            NotFusible: It is aliased, or it requires a gradient while gradients are disabled.
        """
        if self.requires_grad and not torch.is_grad_enabled():
            raise NotFusible("its model changes a tensor in place of which a gradient is wanted, without gradients")
        if self.aliased and not self.owned:
            raise NotFusible("its model changes a tensor in place that another one is a view of")

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Compute a torch function for all lanes."""
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
        """Refuse operations that bypass `__torch_function__`, because this tensor itself has no values."""
        raise NotFusible(f"its model reaches {func} by a way that lanes can't follow")

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """Return a description without values."""
        return f"LaneTensor({len(self.generators)} lanes of {tuple(self.shape)})"


class _Scattered(Exception):
    """The slices have a memory layout that a part of a stack can't have."""


@functools.cache
def _signature(compute: _Rule) -> inspect.Signature:
    return inspect.signature(compute)


def _takes(compute: _Rule, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether a rule accepts these argument names, which may differ from those of torch's function."""
    try:
        _signature(compute).bind(func, *args, **kwargs)
    except TypeError:
        return False
    return True


def _stacked(slices: Sequence[Tensor]) -> Tensor:
    """Stack tensors so that each keeps its strides within the stack.

    Strides don't change values, but torch chooses algorithms by them, for example how to add a bias to a matrix
    product, and derives the strides of results from them.

    Raises:
        _Scattered: The tensors have gaps or overlapping elements.
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
    """Register a rule that computes torch functions for all lanes at once, equal bit for bit to each lane alone.

    The rule receives torch's function and its arguments. It returns NotImplemented if it can't compute them.
    """

    def register(function: _AnyRule) -> _AnyRule:
        _RULES.update(dict.fromkeys(functions, function))
        return function

    return register


def rounded_rule(*functions: Any) -> Callable[[_AnyRule], _AnyRule]:
    """Register a rule for torch functions in packs that may round. It is used if there is no bitwise equal rule.

    Each lane's part of the result must depend neither on the lane's position nor on the other lanes.
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
    """Apply a function to each lane's part of a value, one lane after another.

    Args:
        compute: Receives a lane's index and its part.
        value: A LaneTensor, or lists, tuples and dictionaries with one.
        name: Name of the computation, for the error message.

    Raises:
        NotFusible: The function returns something other than tensors, or changes shared tensors.
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
    """Return each lane's part of a value, with the lane's own tensor for each LaneTensor, also within containers.

    Identical objects stay identical, because attention checks whether query, key and value are the same object.
    """
    parts = {id(leaf): leaf for leaf in leaves_of(value) if isinstance(leaf, LaneTensor | PerLane)}
    slices = {key: leaf.slices if isinstance(leaf, LaneTensor) else leaf for key, leaf in parts.items()}
    return [map_leaves(functools.partial(_of_lane, slices, lane), value) for lane in range(lanes)]


def _of_lane(slices: Mapping[int, Sequence[Any]], lane: int, leaf: Any) -> Any:
    return slices[id(leaf)][lane] if id(leaf) in slices else leaf


def map_leaves(change: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to all leaves of nested lists, tuples and dictionaries.

    torch's own function for this creates a reference cycle in each call, which Python's garbage collector must find.
    """
    if type(value) in (list, tuple):
        return type(value)([map_leaves(change, item) for item in value])
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_leaves(change, item) for item in value))
    if type(value) is dict:
        return {name: map_leaves(change, item) for name, item in value.items()}
    return change(value)


def leaves_of(value: Any) -> list[Any]:
    """Return the leaves of nested lists, tuples and dictionaries, in order."""
    leaves: list[Any] = []
    map_leaves(leaves.append, value)
    return leaves


def _merged(name: str, results: Sequence[Any], used: Sequence[tuple[Tensor, Tensor]]) -> Any:
    first = results[0]
    if isinstance(first, Tensor):
        for tensor, first_lane in used:
            if first is first_lane and isinstance(tensor, LaneTensor):  # returned unchanged, or changed in place
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
        for item in items:  # chunks of a tensor share its memory
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
