"""Functions of each row, image or matrix by itself: lanes are so many more of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hpsearch_trainers.lanes.lane_tensor import LaneTensor, rule
from hpsearch_trainers.lanes.views import stacked_dim

__all__: list[str] = []

_LAST_DIMENSIONS: dict[Any, int] = {
    **dict.fromkeys((functional.avg_pool2d, functional.adaptive_max_pool2d), 2),
    functional.adaptive_avg_pool2d: 2,
    **dict.fromkeys((functional.max_pool1d, functional.avg_pool1d, functional.adaptive_avg_pool1d), 1),
}
"""How many dimensions a function pools; before them are rows and channels."""
_SOFTMAX: dict[Any, Any] = {
    **dict.fromkeys((functional.softmax, torch.softmax, Tensor.softmax), torch.softmax),
    **dict.fromkeys((functional.log_softmax, torch.log_softmax, Tensor.log_softmax), torch.log_softmax),
}
"""By each function that is one of torch's two, that one."""


@rule(*_LAST_DIMENSIONS)
def _pool(func: Any, x: LaneTensor, *args: Any, **kwargs: Any) -> Any:
    if x.dim() != 2 + _LAST_DIMENSIONS[func]:
        return NotImplemented
    result = func(x.stack.flatten(0, 1), *args, **kwargs)
    if not isinstance(result, Tensor):  # the indices are wanted, too
        return NotImplemented
    return LaneTensor.of_stack(result.view(len(x.generators), -1, *result.shape[1:]), x.generators)


@rule(functional.adaptive_avg_pool2d)
def _adaptive_pool(func: Any, x: LaneTensor, output_size: Any) -> Any:
    window = None if x.generators.noise is None else _window(x.shape[2:], output_size)
    # Where windows may overlap, a GPU adds up their gradients in any order.
    return _pool(func, x, output_size) if window is None else _pool(functional.avg_pool2d, x, window)


def _window(sizes: Sequence[int], output_size: Any) -> Sequence[int] | None:
    """Return the size of all windows, where they are as large and lie beside each other; else None."""
    output_sizes = output_size if isinstance(output_size, tuple | list) else [output_size] * 2
    pairs = [(size, size if output is None else output) for size, output in zip(sizes, output_sizes, strict=False)]
    if len(pairs) != 2 or any(output < 1 or size < output or size % output != 0 for size, output in pairs):
        return None
    return [size // output for size, output in pairs]


@rule(*_SOFTMAX)
def _softmax(func: Any, x: LaneTensor, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
    # Functional's have an argument of their own, how deep they were called, and all a dtype.
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
