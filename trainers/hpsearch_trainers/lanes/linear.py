"""Linear layers of all lanes: one product of matrices for all, with the bits of each alone."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hpsearch_trainers.lanes.lane_tensor import LaneTensor, rule

__all__ = ["product"]

_SMALL = 400
"""Multiplications below which torch has a loop of its own for a product of batches, which rounds otherwise."""


class _Linear(torch.autograd.Function):
    """y = x Wᵀ + b for each lane, from x (lanes, rows, in), W (lanes, out, in) and b (lanes, 1, out).

    torch's own derivative of `baddbmm` gives dW as the transpose of xᵀ dy; that of a layer alone is dyᵀ x, whose sums
    are taken in another order.
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
        return NotImplemented  # a vector's product, or one of a few numbers, is taken by other ways
    return product(x, weight, bias)


def product(x: Tensor, weight: LaneTensor, bias: LaneTensor | None) -> LaneTensor:
    """Return x Wᵀ + b of each lane.

    Args:
        x: (..., in), of each lane, or the same for all.
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
