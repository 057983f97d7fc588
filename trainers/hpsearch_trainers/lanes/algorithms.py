"""What is otherwise on a GPU: how numbers come there, and which algorithms give the same bits each time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from hpsearch_trainers.lanes.errors import NotFusible

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
_REPEATABLE = (":4096:8", ":16:8")
_is_late = torch.cuda.is_initialized() and os.environ.get(_CUBLAS) not in _REPEATABLE  # type: ignore[no-untyped-call]
"""Whether CUDA was in use without the variable: cuBLAS reads it once, and torch looks at it whenever it multiplies."""


def calls_are_expensive(device: torch.device) -> bool:
    """Whether a call costs more than what it computes, for a batch of a small model."""
    return device.type != "cpu"


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the CPU there, without waiting for what the device has still to compute."""
    source = tensor.pin_memory() if device.type == "cuda" else tensor
    return source.to(device, non_blocking=True)


@contextlib.contextmanager
def deterministic_algorithms(device: torch.device) -> Iterator[None]:
    """Allow only deterministic algorithms on this device: by default cuDNN chooses by time, and some sum in any order.

    Where there is none for a function, torch raises a RuntimeError; so it does for products of matrices where
    CUBLAS_WORKSPACE_CONFIG is neither `:4096:8` nor `:16:8`.

    Raises:
        NotFusible: That is known to have been set too late for cuBLAS.
    """
    if device.type == "cpu":
        yield
        return
    if _is_late:
        raise NotFusible(f"{_CUBLAS} must be {' or '.join(_REPEATABLE)} before a process uses CUDA, and was set later")
    cudnn = torch.backends.cudnn
    deterministic: Any = torch.utils.deterministic
    mode = torch.get_deterministic_debug_mode()
    before = cudnn.benchmark, cudnn.deterministic, deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    cudnn.benchmark, cudnn.deterministic, deterministic.fill_uninitialized_memory = False, True, False
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        cudnn.benchmark, cudnn.deterministic, deterministic.fill_uninitialized_memory = before
