"""Sending gradients in 16 bits: half the bytes on the wire, and a rounding on the way in and on the way out.

What travels is rounded to 16 bits once by its rank; the group adds up in float32 and rounds the mean once. float16 has
11 bits of precision and ends at 65504, bfloat16 has 8 and the range of float32.
"""

from __future__ import annotations

import torch

from hpsearch_comm.errors import UsageError

__all__ = ["check_compression", "wire_dtype"]

_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def check_compression(compression: str | None) -> None:
    """Raise unless this is a name of a compression, or None.

    Raises:
        UsageError: It isn't.
    """
    if compression is not None and compression not in _DTYPES:
        raise UsageError(f'compression must be None, "fp16" or "bf16", got {compression!r}')


def wire_dtype(compression: str | None, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which gradients of `dtype` travel: only float32 and float64 are made shorter."""
    if compression is None or dtype not in (torch.float32, torch.float64):
        return dtype
    return _DTYPES[compression]
