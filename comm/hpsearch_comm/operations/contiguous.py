"""Flat, contiguous views and copies of tensors, as collectives need them."""

from __future__ import annotations

import torch
from torch.autograd.graph import increment_version


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether the memory holds exactly the elements, in row-major order."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements in row-major order, 1-D: the tensor's own memory if it is plain, else a copy."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if is_plain(tensor):
        return tensor if tensor.dim() == 1 else tensor.view(-1)
    return tensor.resolve_conj().resolve_neg().contiguous().view(-1)


def put_back(elements: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy the elements that `flat` returned back into the tensor. If it is plain, no copy is needed.

    Autograd is notified that the tensor has changed, so a backward pass that needs the previous values raises an error.
    """
    if is_plain(tensor):
        increment_version(tensor)
    else:
        tensor.copy_(elements.view(tensor.shape))


def may_share_elements(tensor: torch.Tensor) -> bool:
    """Return whether two elements may share memory: if a stride doesn't exceed the extent of the smaller strides."""
    reach = 0
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length == 0:
            return False
        if length > 1:
            if stride <= reach:
                return True
            reach += stride * (length - 1)
    return False
