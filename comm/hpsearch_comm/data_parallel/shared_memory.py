"""Memory for many tensors in few pieces: each piece of shared memory costs a rank open files and mappings."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from hpsearch_comm.group import Group

__all__ = ["SharedMemory", "aligned"]

_ALIGNMENT = 64
"""Bytes: a cache line, and enough for every vector instruction."""


def aligned(numel: int, dtype: torch.dtype) -> int:
    """Give the number of elements up to the next cache line."""
    step = max(1, _ALIGNMENT // dtype.itemsize)
    return -(-numel // step) * step


class SharedMemory:
    """Zeros, which the ranks of a host share where they are on the CPU. Making it is a collective.

    Args:
        group: The ranks.
        wanted: Length and dtype of each tensor that will be taken, in order.
        device: Where the tensors are.
    """

    def __init__(self, group: Group, wanted: Iterable[tuple[int, torch.dtype]], device: torch.device) -> None:
        totals: dict[torch.dtype, int] = {}
        for numel, dtype in wanted:
            totals[dtype] = totals.get(dtype, 0) + aligned(numel, dtype)
        self._left = {
            dtype: group.empty(total, dtype=dtype)
            if device.type == "cpu"
            else torch.zeros(total, dtype=dtype, device=device)
            for dtype, total in totals.items()
        }

    def take(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """Give the next tensor of this dtype, of one dimension."""
        whole = self._left[dtype]
        length = aligned(numel, dtype)
        self._left[dtype] = whole[length:]
        return whole[:numel]
