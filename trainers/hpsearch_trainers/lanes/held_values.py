"""Values as they are at one time, to be compared with what is in their place later."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpsearch_trainers.lanes.attributes import described_value
from hpsearch_trainers.lanes.bits import same_bits

__all__ = ["PLAIN", "held"]

PLAIN = (bool, int, float, complex, str, bytes, type(None))
_COPIED = 1 << 16
"""Bytes of a tensor or an array up to which its numbers are kept."""


def held(value: Any) -> object:
    """Give what is equal to that of another value where both are the same, or hold the same.

    Tensors and arrays are compared by their numbers. Of large ones that are changed in place, a tensor tells that it
    was written to, and an array doesn't.
    """
    if isinstance(value, PLAIN):
        return described_value(value, "")
    if isinstance(value, Tensor):
        return _Tensor(value)
    return _Array(value) if isinstance(value, np.ndarray) else _Other(value)


class _Other:
    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Other):
            return False
        one, two = self._value, other._value
        with contextlib.suppress(Exception):  # what a user's class does
            return one is two or (type(one) is type(two) and bool(one == two))
        return False

    __hash__ = None  # type: ignore[assignment]


class _Tensor:
    def __init__(self, value: Tensor) -> None:
        self._value = value
        self._written = None if value.is_inference() else value._version
        self._copy = value.detach().clone() if _is_small(value) else None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Tensor):
            return False
        if self._copy is not None and other._copy is not None:
            return self._value.requires_grad == other._value.requires_grad and same_bits(self._copy, other._copy)
        if self._value is other._value:
            return self._written == other._written
        written = None if self._value.is_inference() else self._value._version
        return written == self._written and same_bits(self._value.detach(), other._value.detach())

    __hash__ = None  # type: ignore[assignment]


class _Array:
    def __init__(self, value: np.ndarray[Any, Any]) -> None:
        self._value = value.copy() if value.nbytes <= _COPIED else value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Array):
            return False
        one, two = self._value, other._value
        return one is two or (one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes())

    __hash__ = None  # type: ignore[assignment]


def _is_small(value: Tensor) -> bool:
    return value.layout is torch.strided and value.device.type == "cpu" and value.nbytes <= _COPIED
