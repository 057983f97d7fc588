"""Whether two results are the same to the bit, or but for rounding."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["about_the_same", "same_bits"]

_ROUNDING = 1e-3
"""Of a network's output, by which two ways to compute it in single precision may differ."""


def same_bits(one: Any, other: Any) -> bool:
    """Whether two values, or containers of such, are the same to the bit; whatever is no number is the same."""
    if isinstance(one, Tensor):
        if not isinstance(other, Tensor) or (one.shape, one.dtype) != (other.shape, other.dtype):
            return False
        return torch.equal(_bytes(one), _bytes(other))
    if isinstance(one, float):
        return isinstance(other, float) and one.hex() == other.hex()
    if isinstance(one, Mapping):
        return (
            isinstance(other, Mapping)
            and list(one) == list(other)
            and all(same_bits(value, other[name]) for name, value in one.items())
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same_bits, one, other))
    return bool(one == other)


def about_the_same(one: Any, other: Any) -> bool:
    """Whether two tensors, or containers of such, differ by no more than what rounding comes to.

    What is no number, and what is none of these, must be the same.
    """
    if isinstance(one, Tensor) and one.is_floating_point():
        if not isinstance(other, Tensor) or (one.shape, one.dtype) != (other.shape, other.dtype):
            return False
        largest = one.masked_fill(~one.isfinite(), 0).abs().max().item() if one.numel() else 0.0
        return torch.allclose(one, other, _ROUNDING, _ROUNDING * largest, equal_nan=True)
    if isinstance(one, Mapping):
        alike = isinstance(other, Mapping) and list(one) == list(other)
        return alike and all(about_the_same(value, other[name]) for name, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(about_the_same, one, other))
    return same_bits(one, other)


def _bytes(tensor: Tensor) -> Tensor:
    plain = tensor.detach()
    if plain.is_floating_point():
        plain = plain.masked_fill(plain.isnan(), math.nan)
    return plain.reshape(-1).contiguous().view(torch.uint8)
