"""The device of a trial, and the precision of its forward passes."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from hpsearch_comm.errors import ConfigurationError


def training_device() -> torch.device:
    """Return torch's current GPU, or the CPU if no GPU is available."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def check_precision(device: torch.device, dtype: torch.dtype | None) -> None:
    """Check that a device supports computing in a dtype.

    Args:
        device: The device of the trial.
        dtype: See `Parts.autocast`.

    Raises:
        ConfigurationError: The device is a GPU that only emulates bfloat16, which is slower than float32.
    """
    if dtype is not torch.bfloat16 or device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False):
        return
    raise ConfigurationError(
        "precision must be fp16 or None on a GPU that doesn't compute in bfloat16, got bf16 on "
        f"{torch.cuda.get_device_name(device)}: bfloat16 takes a GPU of compute capability 8.0 or above"
    )


def precision(device: str, dtype: torch.dtype | None) -> contextlib.AbstractContextManager[Any]:
    """Return the context manager of a forward pass.

    Args:
        device: The device type.
        dtype: See `Parts.autocast`.
    """
    return torch.autocast(device, dtype) if dtype is not None else contextlib.nullcontext()
