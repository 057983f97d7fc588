"""The largest pixels of all lanes' images, found with the channels of a pixel side by side.

So a processor compares a vector of channels at once, and else one number after the other. Which number is the largest,
and of equal ones the first, is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hpsearch_trainers.lanes.lane_tensor import LaneTensor, rule

__all__: list[str] = []

_FEW_CHANNELS = 4
"""Below which it takes longer so."""
_aten = torch.ops.aten


class _MaxPool(torch.autograd.Function):
    """From images (n, channels, height, width) and `max_pool2d`'s other arguments, all given."""

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
