"""Memory of each rank that its peers read: two sides, written in turn, so that writing and reading never meet."""

from __future__ import annotations

import torch

__all__ = ["CHUNK", "Staging", "piece_bytes"]

CHUNK = 512 << 10
"""Bytes of a block: with its like from a peer and the result it stays in a core's own cache."""

_FULL = 8
"""Members up to which each has pieces of full length for all others."""

_PAGE = 4096
_MOST_VIEWS = 4096


def piece_bytes(full: int, members: int) -> int:
    """Give the bytes of what each member has for each: fewer for many, so that it all grows as they, not as p squared.

    Args:
        full: Bytes where they are few.
        members: How many they are.
    """
    return full if members <= _FULL else max(_PAGE, full * _FULL // members // _PAGE * _PAGE)


class Staging:
    """Two sides of `blocks` blocks for each member; a member writes its own and reads everybody's.

    Every collective takes as many turns as it has chunks, the same number on every rank, and a barrier lies between
    writing a chunk and reading it. A side is written again two chunks later: by then its readers have come to the
    barrier of the chunk between.

    Args:
        memory: The mapping, uint8.
        start: Byte offset of the first member's first side.
        members: How many ranks share it.
        blocks: How many blocks a side has.
        capacity: Bytes of a block.

    Attributes:
        turn: The number of the next chunk.
    """

    __slots__ = ("_blocks", "_members", "_memory", "_rows", "_start", "_views", "capacity", "turn")

    def __init__(self, memory: torch.Tensor, start: int, members: int, blocks: int, capacity: int) -> None:
        self._memory = memory
        self._start = start
        self._members = members
        self._blocks = blocks
        self._views: dict[tuple[int, int, int, torch.dtype, int], torch.Tensor] = {}
        self._rows: dict[tuple[int, torch.dtype, int], tuple[torch.Tensor, ...]] = {}
        self.capacity = capacity
        self.turn = 0

    @staticmethod
    def nbytes(members: int, blocks: int, capacity: int) -> int:
        """Give how much memory it takes."""
        return members * 2 * blocks * capacity

    def row(self, turn: int, dtype: torch.dtype, numel: int) -> tuple[torch.Tensor, ...]:
        """Give every member's view of this kind, of the first block."""
        key = (turn & 1, dtype, numel)
        found = self._rows.get(key)
        if found is None:
            if len(self._rows) >= _MOST_VIEWS:
                self._rows.clear()
            members = range(self._members)
            found = self._rows[key] = tuple(self.view(member, turn, 0, dtype, numel) for member in members)
        return found

    def view(self, member: int, turn: int, block: int, dtype: torch.dtype, numel: int) -> torch.Tensor:
        """Give the first `numel` elements of a member's block, on the side whose turn it is."""
        key = (member, turn & 1, block, dtype, numel)
        found = self._views.get(key)
        if found is None:
            if len(self._views) >= _MOST_VIEWS:
                self._views.clear()
            start = self._start + ((member * 2 + (turn & 1)) * self._blocks + block) * self.capacity
            found = self._views[key] = self._memory[start : start + numel * dtype.itemsize].view(dtype)
        return found
