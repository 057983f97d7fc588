"""A tensor's elements in a row, which is how collectives see them."""

from __future__ import annotations

import torch
from torch.autograd.graph import increment_version


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether the memory holds just the elements, in row-major order."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements in row-major order, 1-D: the tensor's own memory where it is plain, else a copy."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if is_plain(tensor):
        return tensor if tensor.dim() == 1 else tensor.view(-1)
    return tensor.resolve_conj().resolve_neg().contiguous().view(-1)


def put_back(elements: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy elements that `flat` gave into the tensor; where it is plain, they are there already.

    Autograd learns that the tensor has changed, so that it refuses a backward pass that needs what it was before.
    """
    if is_plain(tensor):
        increment_version(tensor)
    else:
        tensor.copy_(elements.view(tensor.shape))


def may_share_elements(tensor: torch.Tensor) -> bool:
    """Return whether two elements could lie in one place: where a dimension doesn't step over all shorter ones."""
    reach = 0
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length == 0:
            return False
        if length > 1:
            if stride <= reach:
                return True
            reach += stride * (length - 1)
    return False
