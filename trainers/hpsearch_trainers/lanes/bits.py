"""Comparison of results, bit for bit or up to rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

_ROUNDING = 1e-3
"""Tolerance in single precision, relative to a network's output."""


def same_bits(first: Any, second: Any) -> bool:
    """Return whether two values, or containers of values, are equal bit for bit. All NaNs are equal."""
    return _same(first, second, _same_tensor_bits)


def nearly_equal(first: Any, second: Any) -> bool:
    """Return whether two tensors, or containers of tensors, are equal up to rounding.

    NaNs must be in the same positions, and values that aren't tensors must be equal.
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
