"""Copies between a GPU and messages, which lie in host memory.

CUDA copies from and to pinned memory directly. Other memory is copied through a pinned buffer of the driver's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def empty_on_host(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return memory on the CPU, whatever torch's default device is; pinned where copies go to or come from a GPU.

    Args:
        shape: Of the tensor.
        dtype: Of the tensor.
        device: The other end of its copies.
    """
    return torch.empty(tuple(shape), dtype=dtype, device="cpu", pin_memory=device.type == "cuda")


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors on the CPU, contiguous and without their graph; those of a GPU are waited for once."""
    copies = [_begin_copy(tensor.detach()) for tensor in tensors]
    for device in {tensor.device for tensor in tensors}:
        wait_for(device)
    return copies


def wait_for(device: torch.device) -> None:
    """Wait for the copies from a GPU on the current stream; nothing to wait for on another device."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def _begin_copy(tensor: Tensor) -> Tensor:
    if tensor.device.type == "cpu":
        return tensor.contiguous()
    return empty_on_host(tensor.shape, tensor.dtype, tensor.device).copy_(tensor, non_blocking=True)
