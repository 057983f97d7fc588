"""Copy memory."""

from __future__ import annotations

import ctypes

import torch

_memmove = ctypes.memmove


def copy(to: torch.Tensor, source: torch.Tensor) -> None:
    """Copy a tensor with memmove. Both are contiguous, on the CPU, and have the same dtype and length.

    memmove doesn't read the cache lines that it overwrites. From 64 KB on it can take half of torch's time, especially
    if another core has just read these lines. It starts no threads, and releases the interpreter lock.
    """
    _memmove(to.data_ptr(), source.data_ptr(), to.nbytes)
