"""A tensor's elements in a row, which is how collectives see them."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from hpsearch_comm.errors import UsageError

__all__ = ["check_device", "flat", "is_plain"]


def is_plain(tensor: torch.Tensor) -> bool:
    """Say whether the memory holds just the elements, in row-major order."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Give the elements in row-major order, 1-D: the tensor's own memory where it is plain, else a copy."""
    tensor = tensor.detach()
    return tensor.view(-1) if is_plain(tensor) else tensor.resolve_conj().resolve_neg().contiguous().view(-1)


def check_device(device: torch.device, tensors: Iterable[torch.Tensor]) -> None:
    """Raise UsageError unless all tensors lie on the device."""
    for tensor in tensors:
        if tensor.device != device:
            raise UsageError(
                f"tensors must lie on {device}, where this rank computes, got one on {tensor.device}: move it with "
                "tensor.to(device)"
            )
