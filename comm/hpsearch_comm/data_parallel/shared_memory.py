"""Memory for many tensors in few allocations: each one of shared memory costs a rank open files and mappings."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hpsearch_comm.group import Group

__all__ = ["aligned", "shared_zeros"]

_ALIGNMENT = 64
"""Bytes: a cache line, and enough for every vector instruction."""


def aligned(numel: int, dtype: torch.dtype) -> int:
    """Return the number of elements up to the next cache line."""
    step = max(1, _ALIGNMENT // dtype.itemsize)
    return -(-numel // step) * step


def shared_zeros(group: Group, layouts: Sequence[tuple[int, torch.dtype, torch.device]]) -> list[torch.Tensor]:
    """Make 1-D tensors of zeros, which the ranks of a host share where they are on the CPU; a collective.

    Args:
        group: The ranks.
        layouts: Length, dtype and device of each.
    """
    totals: dict[tuple[torch.dtype, torch.device], int] = {}
    starts = []
    for numel, dtype, device in layouts:
        starts.append(totals.get((dtype, device), 0))
        totals[dtype, device] = starts[-1] + aligned(numel, dtype)
    memory = {
        (dtype, device): group.empty(total, dtype=dtype)
        if device.type == "cpu"
        else torch.zeros(total, dtype=dtype, device=device)
        for (dtype, device), total in totals.items()
    }
    return [
        memory[dtype, device][start : start + numel]
        for start, (numel, dtype, device) in zip(starts, layouts, strict=True)
    ]
