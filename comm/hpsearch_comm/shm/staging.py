"""Memory of each rank that its peers read: two sides, written in turn, so that writing and reading never meet."""

from __future__ import annotations

from functools import lru_cache

import torch

from hpsearch_comm.shm.barrier import Words

__all__ = ["CHUNK", "Staging", "piece_bytes"]

CHUNK = 512 << 10
"""Bytes of a block: with its like from a peer and the result it stays in a core's own cache."""

_FULL = 8
"""Members up to which each has pieces of full length for all others."""

_PAGE = 4096
_MOST_ROWS = 4096


def piece_bytes(full: int, members: int) -> int:
    """Return the bytes of what each member has for each: fewer for many, so that all grows as they, not as p squared.

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
        words: The mapping.
        start: Byte offset of the first member's first side.
        members: How many ranks share it.
        blocks: How many blocks a side has.
        capacity: Bytes of a block.

    Attributes:
        turn: The number of the next chunk.
    """

    def __init__(self, words: Words, start: int, members: int, blocks: int, capacity: int) -> None:
        tensor = words.tensor

        def view(member: int, side: int, block: int, dtype: torch.dtype, numel: int) -> torch.Tensor:
            return tensor(start + ((member * 2 + side) * blocks + block) * capacity, dtype, numel)

        @lru_cache(_MOST_ROWS)
        def row(side: int, dtype: torch.dtype, numel: int) -> tuple[torch.Tensor, ...]:
            return tuple(view(member, side, 0, dtype, numel) for member in range(members))

        self._view, self._row = view, row
        self.capacity = capacity
        self.turn = 0

    @staticmethod
    def nbytes(members: int, blocks: int, capacity: int) -> int:
        """Return how much memory it takes."""
        return members * 2 * blocks * capacity

    def row(self, turn: int, dtype: torch.dtype, numel: int) -> tuple[torch.Tensor, ...]:
        """Return every member's view of this kind, of the first block."""
        return self._row(turn & 1, dtype, numel)

    def view(self, member: int, turn: int, block: int, dtype: torch.dtype, numel: int) -> torch.Tensor:
        """Return the first `numel` elements of a member's block, on the side whose turn it is."""
        return self._view(member, turn & 1, block, dtype, numel)
