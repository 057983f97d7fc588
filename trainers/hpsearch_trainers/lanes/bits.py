"""Whether two results are the same to the bit, or but for rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

_ROUNDING = 1e-3
"""Of a network's output, by which two ways to compute it in single precision may differ."""


def same_bits(first: Any, second: Any) -> bool:
    """Whether two values, or containers of such, are the same to the bit; whatever is no number is the same."""
    return _same(first, second, _same_tensor_bits)


def nearly_equal(first: Any, second: Any) -> bool:
    """Whether two tensors, or containers of such, differ by no more than what rounding comes to.

    What is no number, and what is none of these, must be the same.
    """
    return _same(first, second, _nearly_equal_tensors)


def _same(first: Any, second: Any, same_tensors: Callable[[Tensor, Tensor], bool]) -> bool:
    if isinstance(first, Tensor):
        same_kind = isinstance(second, Tensor) and (first.shape, first.dtype) == (second.shape, second.dtype)
        return same_kind and same_tensors(first, second)
    if isinstance(first, float):
        return isinstance(second, float) and first.hex() == second.hex()
    if isinstance(first, Mapping):
        same_keys = isinstance(second, Mapping) and list(first) == list(second)
        return same_keys and all(_same(value, second[name], same_tensors) for name, value in first.items())
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(partial(_same, same_tensors=same_tensors), first, second))
    return bool(first == second)


def _nearly_equal_tensors(first: Tensor, second: Tensor) -> bool:
    if not first.is_floating_point():
        return _same_tensor_bits(first, second)
    largest = first.masked_fill(~first.isfinite(), 0).abs().max().item() if first.numel() else 0.0
    return torch.allclose(first, second, _ROUNDING, _ROUNDING * largest, equal_nan=True)


def _same_tensor_bits(first: Tensor, second: Tensor) -> bool:
    return torch.equal(_bytes(first), _bytes(second))


def _bytes(tensor: Tensor) -> Tensor:
    plain = tensor.detach()
    if plain.is_floating_point():
        plain = plain.masked_fill(plain.isnan(), math.nan)
    return plain.reshape(-1).contiguous().view(torch.uint8)
