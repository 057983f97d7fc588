"""Copies between a GPU and messages in host memory.

CUDA copies to and from pinned memory directly. It copies other memory through a pinned buffer of the driver.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def empty_on_host(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return an uninitialized CPU tensor, pinned if it is copied to or from a GPU. Ignores torch's default device.

    Args:
        shape: Shape of the tensor.
        dtype: Dtype of the tensor.
        device: Device that the tensor is copied to or from.
    """
    return torch.empty(tuple(shape), dtype=dtype, device="cpu", pin_memory=device.type == "cuda")


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors on the CPU, contiguous and detached. It waits once for each GPU."""
    copies = [_begin_copy(tensor.detach()) for tensor in tensors]
    for device in {tensor.device for tensor in tensors}:
        wait_for(device)
    return copies


def wait_for(device: torch.device) -> None:
    """Wait for the copies on the current stream of a GPU; return at once for another device."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def _begin_copy(tensor: Tensor) -> Tensor:
    if tensor.device.type == "cpu":
        return tensor.contiguous()
    return empty_on_host(tensor.shape, tensor.dtype, tensor.device).copy_(tensor, non_blocking=True)
