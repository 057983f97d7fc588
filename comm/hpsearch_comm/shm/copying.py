"""Copying from one place in memory to another."""

from __future__ import annotations

import ctypes

import torch

_memmove = ctypes.memmove


def copy(to: torch.Tensor, source: torch.Tensor) -> None:
    """Copy memory: both contiguous, on the CPU, of one dtype and length; they may be the same.

    The C library's copy writes without reading the lines that it overwrites, so from 64 KB on it takes as little as
    half of torch's time, most of all where another core has just read them. It starts no threads, and lets go of the
    interpreter lock.
    """
    _memmove(to.data_ptr(), source.data_ptr(), to.nbytes)
