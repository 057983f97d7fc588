"""Rules for torch functions that compute all lanes at once, equal bit for bit to each lane alone.

Most elementwise functions give the same bits at any position. Some use other instructions for the last numbers that
don't fill a vector register; for these, a lane's numbers must fill whole vectors. For functions of independent rows,
images or matrices, the lanes are a larger batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hpsearch_trainers.lanes.lane_tensor import LaneTensor, rule


def stacked_dim(x: Tensor, dim: int) -> int:
    """Return the stack's dimension for a dimension of one lane's tensor.

    Raises:
        IndexError: There is no such dimension.
    """
    return range(x.dim())[dim] + 1


def _view(x: LaneTensor, stack: Tensor) -> LaneTensor:
    x.aliased = True
    return LaneTensor.of_stack(stack, x.generators, aliased=True)


def _sizes(shape: tuple[Any, ...]) -> tuple[int, ...] | None:
    """Return a shape that was passed as one sequence or as separate numbers."""
    sizes = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
    return sizes if all(isinstance(size, int) for size in sizes) else None


@rule(torch.flatten, Tensor.flatten)
def _flatten(_: Any, x: LaneTensor, start_dim: int = 0, end_dim: int = -1) -> Any:
    if x.dim() == 0:
        return NotImplemented
    return _view(x, x.stack.flatten(stacked_dim(x, start_dim), stacked_dim(x, end_dim)))


@rule(torch.reshape, Tensor.reshape)
def _reshape(_: Any, x: LaneTensor, *shape: Any) -> Any:
    sizes = _sizes(shape)
    return NotImplemented if sizes is None else _view(x, x.stack.reshape(len(x.generators), *sizes))


@rule(Tensor.view)
def _of_view(_: Any, x: LaneTensor, *shape: Any) -> Any:
    sizes = _sizes(shape)
    return NotImplemented if sizes is None else _view(x, x.stack.view(len(x.generators), *sizes))


@rule(torch.permute, Tensor.permute)
def _permute(_: Any, x: LaneTensor, *dims: Any) -> Any:
    sizes = _sizes(dims)
    return NotImplemented if sizes is None else _view(x, x.stack.permute(0, *(stacked_dim(x, dim) for dim in sizes)))


@rule(torch.transpose, Tensor.transpose, torch.swapaxes, Tensor.swapaxes)
def _transpose(_: Any, x: LaneTensor, one: int, other: int) -> Any:
    if x.dim() == 0:
        return NotImplemented
    return _view(x, x.stack.transpose(stacked_dim(x, one), stacked_dim(x, other)))


@rule(torch.unsqueeze, Tensor.unsqueeze)
def _unsqueeze(_: Any, x: LaneTensor, dim: int) -> LaneTensor:
    return _view(x, x.stack.unsqueeze(range(x.dim() + 1)[dim] + 1))


@rule(torch.squeeze, Tensor.squeeze)
def _squeeze(_: Any, x: LaneTensor, *dim: Any) -> Any:
    if len(dim) != 1 or not isinstance(dim[0], int) or x.dim() == 0:
        return NotImplemented
    return _view(x, x.stack.squeeze(stacked_dim(x, dim[0])))


@rule(torch.unflatten, Tensor.unflatten)
def _unflatten(_: Any, x: LaneTensor, dim: int, sizes: Any) -> LaneTensor:
    return _view(x, x.stack.unflatten(stacked_dim(x, dim), sizes))  # type: ignore[no-untyped-call]


@rule(Tensor.__getitem__)
def _item(_: Any, x: Any, index: Any) -> Any:
    indices = index if isinstance(index, tuple) else (index,)
    plain = all(item is None or item is Ellipsis or type(item) in (int, slice) for item in indices)
    if not isinstance(x, LaneTensor) or not plain:
        return NotImplemented
    return _view(x, x.stack[(slice(None), *indices)])


_LAST_DIMENSIONS: dict[Any, int] = {
    **dict.fromkeys((functional.avg_pool2d, functional.adaptive_max_pool2d), 2),
    functional.adaptive_avg_pool2d: 2,
    **dict.fromkeys((functional.max_pool1d, functional.avg_pool1d, functional.adaptive_avg_pool1d), 1),
}
"""Number of dimensions that a function pools; they follow rows and channels."""
_SOFTMAX: dict[Any, Any] = {
    **dict.fromkeys((functional.softmax, torch.softmax, Tensor.softmax), torch.softmax),
    **dict.fromkeys((functional.log_softmax, torch.log_softmax, Tensor.log_softmax), torch.log_softmax),
}
"""The basic torch function, softmax or log_softmax, for each of its variants."""


@rule(*_LAST_DIMENSIONS)
def _pool(func: Any, x: LaneTensor, *args: Any, **kwargs: Any) -> Any:
    if x.dim() != 2 + _LAST_DIMENSIONS[func]:
        return NotImplemented
    result = func(x.stack.flatten(0, 1), *args, **kwargs)
    if not isinstance(result, Tensor):  # the call also returns indices
        return NotImplemented
    return LaneTensor.of_stack(result.view(len(x.generators), -1, *result.shape[1:]), x.generators)


@rule(functional.adaptive_avg_pool2d)
def _adaptive_pool(func: Any, x: LaneTensor, output_size: Any) -> Any:
    window = None if x.generators.noise is None else _window(x.shape[2:], output_size)
    # If windows overlap, a GPU sums their gradients in any order.
    return _pool(func, x, output_size) if window is None else _pool(functional.avg_pool2d, x, window)


def _window(sizes: Sequence[int], output_size: Any) -> Sequence[int] | None:
    """Return the window size if all windows have the same size and don't overlap, else None."""
    output_sizes = output_size if isinstance(output_size, tuple | list) else [output_size] * 2
    pairs = [(size, size if output is None else output) for size, output in zip(sizes, output_sizes, strict=False)]
    if len(pairs) != 2 or any(output < 1 or size < output or size % output != 0 for size, output in pairs):
        return None
    return [size // output for size, output in pairs]


@rule(*_SOFTMAX)
def _softmax(func: Any, x: LaneTensor, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    # The variants in `functional` have an extra argument for the stack level, and all have a dtype.
    if not isinstance(dim, int) or x.dim() == 0 or args or kwargs.get("dtype") is not None:
        return NotImplemented
    return LaneTensor.of_stack(_SOFTMAX[func](x.stack, stacked_dim(x, dim)), x.generators)


@rule(torch.bmm, Tensor.bmm, torch.matmul, Tensor.matmul, Tensor.__matmul__)
def _matmul(_: Any, x: Any, y: Any) -> Any:
    if not (isinstance(x, LaneTensor) and isinstance(y, LaneTensor)):
        return NotImplemented
    if x.dim() < 3 or x.shape[:-2] != y.shape[:-2]:
        return NotImplemented
    return LaneTensor.of_stack(x.stack @ y.stack, x.generators)


@rule(functional.pad)
def _pad(_: Any, x: LaneTensor, pad: Any, mode: str = "constant", value: float | None = None) -> Any:
    if mode != "constant" or len(pad) > 2 * x.dim():
        return NotImplemented
    return LaneTensor.of_stack(functional.pad(x.stack, pad, mode, value), x.generators)


@rule(torch.cat, torch.concat)
def _cat(_: Any, tensors: Any, dim: int = 0) -> Any:
    if not all(isinstance(tensor, LaneTensor) and tensor.dim() > 0 for tensor in tensors):
        return NotImplemented
    stack = torch.cat([tensor.stack for tensor in tensors], stacked_dim(tensors[0], dim))
    return LaneTensor.of_stack(stack, tensors[0].generators)


_FEW_CHANNELS = 4
"""Number of channels below which `_MaxPool` is slower than torch's pooling."""
_aten = torch.ops.aten


class _MaxPool(torch.autograd.Function):
    """Max pooling in channels-last format, in which the CPU kernel compares a vector of channels at once.

    The result is the same, also the choice of the first among equal numbers. Takes images (n, channels, height, width)
    and all other arguments of `max_pool2d`.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, *window: Any) -> Tensor:
        channels_last = x.contiguous(memory_format=torch.channels_last)
        largest, indices = _aten.max_pool2d_with_indices(channels_last, *window)
        ctx.save_for_backward(x, indices.contiguous())
        ctx.window = window
        pooled: Tensor = largest.contiguous()
        return pooled

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, indices = ctx.saved_tensors
        input_gradient = _aten.max_pool2d_with_indices_backward(gradient.contiguous(), x, *ctx.window, indices)
        return input_gradient, *(None for _ in ctx.window)


@rule(functional.max_pool2d)
def _max_pool2d(
    func: Any,
    x: LaneTensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    if x.dim() != 4 or return_indices:
        return NotImplemented
    images = x.stack.flatten(0, 1)
    if x.generators.noise is not None or x.shape[1] < _FEW_CHANNELS or x.dtype not in (torch.float32, torch.float64):
        pooled = func(images, kernel_size, stride, padding, dilation, ceil_mode)
    else:
        kernel, *options = map(_pair, (kernel_size, kernel_size if stride is None else stride, padding, dilation))
        pooled = _MaxPool.apply(images, kernel, *options, ceil_mode)  # type: ignore[no-untyped-call]
    return LaneTensor.of_stack(pooled.view(len(x.generators), -1, *pooled.shape[1:]), x.generators)


def _pair(value: Any) -> Sequence[int]:
    return [value, value] if isinstance(value, int) else [*value] * (2 // len(value))


_SMALL = 400
"""Number of multiplications below which torch computes a batched product in a separate loop, which rounds differently.
"""


class _Linear(torch.autograd.Function):
    """y = x Wᵀ + b for each lane, from x (lanes, rows, in), W (lanes, out, in) and b (lanes, 1, out).

    torch's derivative of `baddbmm` computes dW as the transpose of xᵀ dy. For a layer alone it is dyᵀ x, which has
    another order of summation.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.biased = bias is not None
        transposed = weight.transpose(1, 2)
        return torch.bmm(x, transposed) if bias is None else torch.baddbmm(bias, x, transposed)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            torch.bmm(gradient, weight) if needs_x else None,
            torch.bmm(gradient.transpose(1, 2), x) if needs_weight else None,
            gradient.sum(1, keepdim=True) if needs_bias else None,
        )


@rule(functional.linear)
def _linear(_: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    if not isinstance(weight, LaneTensor) or not (bias is None or isinstance(bias, LaneTensor)):
        return NotImplemented
    if weight.dim() != 2 or x.dim() < 2 or not x.is_contiguous() or not _are_float32(x, weight, bias):
        return NotImplemented
    outputs, inputs = weight.shape
    rows = x.numel() // inputs if inputs else 0
    if min(rows, inputs, outputs) < 2 or rows * inputs * outputs < _SMALL:
        return NotImplemented  # torch uses other algorithms for vectors and small products
    return product(x, weight, bias)


def product(x: Tensor, weight: LaneTensor, bias: LaneTensor | None) -> LaneTensor:
    """Return x Wᵀ + b of each lane.

    Args:
        x: (..., in), for each lane or shared by all.
        weight: (out, in).
        bias: (out,).
    """
    lanes, (outputs, inputs) = len(weight.generators), weight.shape
    stack = x.stack if isinstance(x, LaneTensor) else x.expand(lanes, *x.shape)
    biases = None if bias is None else bias.stack.unsqueeze(1)
    rows = stack.reshape(lanes, math.prod(x.shape[:-1]), inputs)
    result: Tensor = _Linear.apply(rows, weight.stack, biases)  # type: ignore[no-untyped-call]
    return LaneTensor.of_stack(result.view(lanes, *x.shape[:-1], outputs), weight.generators)


def _are_float32(*tensors: Tensor | None) -> bool:
    all_float32 = all(tensor is None or tensor.dtype == torch.float32 for tensor in tensors)
    return all_float32 and not any(
        tensor is not None and torch.is_autocast_enabled(tensor.device.type) for tensor in tensors
    )


WHOLE_VECTORS = 64
"""A multiple of the count of numbers that any CPU's vectorized loop processes at once, such as two vectors of 16."""

_IN_PLACE: dict[Any, Any] = {torch.relu_: torch.relu, Tensor.relu_: torch.relu, Tensor.neg_: torch.neg}
_BINARY_IN_PLACE: dict[Any, Any] = {
    **dict.fromkeys((Tensor.add_, Tensor.__iadd__), torch.add),
    **dict.fromkeys((Tensor.mul_, Tensor.__imul__), torch.mul),
}
"""The out-of-place function of each in-place function."""


@rule(
    *(torch.relu, Tensor.relu, torch.tanh, Tensor.tanh, functional.tanh, torch.exp, Tensor.exp, torch.log, Tensor.log),
    *(torch.sqrt, Tensor.sqrt, torch.abs, Tensor.abs, torch.neg, Tensor.neg, Tensor.__neg__),
    *(Tensor.contiguous, Tensor.detach, torch.detach, functional.logsigmoid, functional.softsign),
)
def _unary(func: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    if not isinstance(x, LaneTensor) or args or kwargs:
        return NotImplemented
    result = func(x.stack)
    shares_memory = result.data_ptr() == x.stack.data_ptr()  # true if it was contiguous, or for `detach`
    x.aliased = x.aliased or shares_memory
    return LaneTensor.of_stack(result, x.generators, aliased=shares_memory)


@rule(
    *(functional.relu, functional.relu6, functional.hardtanh, functional.leaky_relu),
    *(functional.hardswish, functional.hardsigmoid),
)
def _maybe_in_place(func: Any, x: Any, *args: Any, inplace: bool = False, **kwargs: Any) -> Any:
    # A positional bool is `inplace` as well.
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


BINARY = (
    *(torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, torch.sub, Tensor.sub, Tensor.__sub__),
    *(torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.div, Tensor.div, Tensor.__truediv__),
    *(torch.maximum, Tensor.maximum, torch.minimum, Tensor.minimum),
)
"""Elementwise functions of two tensors."""


@rule(*BINARY)
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
        func(x.stack, y)  # for example a counter of batches
        return x
    pair = _aligned(x, y)
    if pair is None:
        return NotImplemented
    result = LaneTensor.of_stack(_BINARY_IN_PLACE[func](*pair), x.generators)
    return x.become(result) if result.dtype == x.dtype and result.shape == x.shape else NotImplemented


def _aligned(x: Any, y: Any) -> tuple[Any, Any] | None:
    """Return both operands for all lanes if they have the same shape or one is a number, else None.

    If shapes differ, the gradient of the smaller operand is a sum, and type promotion depends on the dimensions.
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
