"""GPU specifics: asynchronous copies, and deterministic algorithms."""

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
"""Whether CUDA was initialized before the variable was set. cuBLAS reads the variable once, torch at each product."""


def calls_are_expensive(device: torch.device) -> bool:
    """Return whether a kernel launch takes longer than its computation, for a batch of a small model."""
    return device.type != "cpu"


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a CPU tensor to a device without waiting for the device's pending work."""
    source = tensor.pin_memory() if device.type == "cuda" else tensor
    return source.to(device, non_blocking=True)


@contextlib.contextmanager
def deterministic_algorithms(device: torch.device) -> Iterator[None]:
    """Allow only deterministic algorithms on a device. By default, cuDNN benchmarks, and some functions use atomics.

    torch raises a RuntimeError if a function has no deterministic algorithm, and for matrix products if
    CUBLAS_WORKSPACE_CONFIG is neither `:4096:8` nor `:16:8`.

    Raises:
        NotFusible: CUBLAS_WORKSPACE_CONFIG was set after CUDA was initialized.
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
