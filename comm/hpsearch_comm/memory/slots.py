"""Slots of shared memory that all ranks of a host write and read, taken in turn."""

from __future__ import annotations

import torch

__all__ = ["SLOT", "Slots"]

SLOT = 1 << 20
"""Bytes of a slot: with fewer there are more barriers, with more the slots of several ranks don't stay in the cache."""


class Slots:
    """One slot more than there are ranks; see `chain` for when one may be written again.

    Args:
        memory: The mapping, uint8.
        start: Byte offset of the first slot.
        members: How many ranks share them.

    Attributes:
        turn: The number of the next chunk.
    """

    __slots__ = ("_memory", "_number", "_start", "turn")

    def __init__(self, memory: torch.Tensor, start: int, members: int) -> None:
        self._memory = memory
        self._start = start
        self._number = members + 1
        self.turn = 0

    @staticmethod
    def nbytes(members: int) -> int:
        """Give how much memory they take."""
        return (members + 1) * SLOT

    def view(self, turn: int, dtype: torch.dtype, numel: int) -> torch.Tensor:
        """Give the first `numel` elements of the slot that a chunk has."""
        start = self._start + turn % self._number * SLOT
        return self._memory[start : start + numel * dtype.itemsize].view(dtype)
