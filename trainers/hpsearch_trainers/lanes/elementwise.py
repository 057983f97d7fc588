"""Functions of each number by itself.

Most give the same bits wherever a number stands. Others are computed by other instructions where the last numbers don't
fill a processor's vectors: of these, a lane must have as many numbers as fill them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hpsearch_trainers.lanes.lane_tensor import LaneTensor, rule

__all__ = ["WHOLE_VECTORS"]

WHOLE_VECTORS = 64
"""A multiple of the numbers that any processor's loop takes at once: two vectors of 16."""

_IN_PLACE: dict[Any, Any] = {torch.relu_: torch.relu, Tensor.relu_: torch.relu, Tensor.neg_: torch.neg}
_BINARY_IN_PLACE: dict[Any, Any] = {
    **dict.fromkeys((Tensor.add_, Tensor.__iadd__), torch.add),
    **dict.fromkeys((Tensor.mul_, Tensor.__imul__), torch.mul),
}
"""By what is in place, what is not."""


@rule(
    *(torch.relu, Tensor.relu, torch.tanh, Tensor.tanh, functional.tanh, torch.exp, Tensor.exp, torch.log, Tensor.log),
    *(torch.sqrt, Tensor.sqrt, torch.abs, Tensor.abs, torch.neg, Tensor.neg, Tensor.__neg__),
    *(Tensor.contiguous, Tensor.detach, torch.detach, functional.logsigmoid, functional.softsign),
)
def _unary(func: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    if not isinstance(x, LaneTensor) or args or kwargs:
        return NotImplemented
    result = func(x.stack)
    shares_memory = result.data_ptr() == x.stack.data_ptr()  # a tensor that was contiguous, or is detached
    x.aliased = x.aliased or shares_memory
    return LaneTensor.of_stack(result, x.generators, aliased=shares_memory)


@rule(
    *(functional.relu, functional.relu6, functional.hardtanh, functional.leaky_relu),
    *(functional.hardswish, functional.hardsigmoid),
)
def _maybe_in_place(func: Any, x: Any, *args: Any, inplace: bool = False, **kwargs: Any) -> Any:
    # A bool among the arguments by place is `inplace` as well.
    if not isinstance(x, LaneTensor) or any(
        isinstance(argument, bool | Tensor) for argument in (*args, *kwargs.values())
    ):
        return NotImplemented
    result = LaneTensor.of_stack(func(x.stack, *args, **kwargs), x.generators)
    return x.become(result) if inplace else result


@rule(
    *(torch.sigmoid, Tensor.sigmoid, functional.sigmoid, functional.gelu, functional.softplus),
    *(functional.silu, functional.mish, functional.elu, functional.selu, functional.celu),
)
def _of_whole_vectors(func: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    if x.numel() == 0 or not x.is_contiguous() or (x.device.type == "cpu" and x.numel() % WHOLE_VECTORS != 0):
        return NotImplemented
    return _maybe_in_place(func, x, *args, **kwargs)


@rule(*_IN_PLACE)
def _in_place(func: Any, x: LaneTensor) -> Any:
    return NotImplemented if x.owned else x.become(LaneTensor.of_stack(_IN_PLACE[func](x.stack), x.generators))


@rule(
    *(torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, torch.sub, Tensor.sub, Tensor.__sub__),
    *(torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.div, Tensor.div, Tensor.__truediv__),
    *(torch.maximum, Tensor.maximum, torch.minimum, Tensor.minimum),
)
def _binary(func: Any, x: Any, y: Any, **kwargs: Any) -> Any:
    pair = None if kwargs else _aligned(x, y)
    if pair is None:
        return NotImplemented
    return LaneTensor.of_stack(func(*pair), (x if isinstance(x, LaneTensor) else y).generators)


@rule(*_BINARY_IN_PLACE)
def _binary_in_place(func: Any, x: Any, y: Any, **kwargs: Any) -> Any:
    if not isinstance(x, LaneTensor) or kwargs:
        return NotImplemented
    if x.owned:
        if x.requires_grad or not isinstance(y, int | float):
            return NotImplemented
        func(x.stack, y)  # a count of batches
        return x
    pair = _aligned(x, y)
    if pair is None:
        return NotImplemented
    result = LaneTensor.of_stack(_BINARY_IN_PLACE[func](*pair), x.generators)
    return x.become(result) if result.dtype == x.dtype and result.shape == x.shape else NotImplemented


def _aligned(x: Any, y: Any) -> tuple[Any, Any] | None:
    """Return both sides for all lanes at once, where they have one shape, or one is a number; else None.

    Where shapes differ, the gradient of the smaller one is a sum, and dtypes depend on which one has dimensions.
    """
    if isinstance(x, LaneTensor) and isinstance(y, LaneTensor):
        return (x.stack, y.stack) if x.shape == y.shape and x.dtype == y.dtype else None
    lane_tensor, operand = (x, y) if isinstance(x, LaneTensor) else (y, x)
    if isinstance(operand, Tensor):
        is_compatible = (
            operand.dtype == lane_tensor.dtype and operand.dim() <= lane_tensor.dim() and not operand.requires_grad
        )
        if not is_compatible or torch.broadcast_shapes(operand.shape, lane_tensor.shape) != lane_tensor.shape:  # type: ignore[no-untyped-call]
            return None
    elif isinstance(operand, bool) or not isinstance(operand, int | float):
        return None
    return (lane_tensor.stack, operand) if lane_tensor is x else (operand, lane_tensor.stack)
