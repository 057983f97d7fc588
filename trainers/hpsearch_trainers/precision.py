"""What forward passes are computed in."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

__all__ = ["precision"]


def precision(device: str, dtype: torch.dtype | None) -> contextlib.AbstractContextManager[Any]:
    """Make the context of a forward pass.

    Args:
        device: Its kind.
        dtype: See `Parts.autocast`.
    """
    return torch.autocast(device, dtype) if dtype is not None else contextlib.nullcontext()
