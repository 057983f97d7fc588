"""Slots of shared memory through which one member sends messages to another, in chunks."""

from __future__ import annotations

import torch

from hpsearch_comm.shm.barrier import LINE, Words

SLOTS = 4
SLOT_BYTES = 128 << 10
"""Size of a slot if there are few ranks; see `piece_bytes`."""

_WRITTEN, _TAKEN, _HEADERS, _CONTENT = 0, 2 * LINE, 4 * LINE, 4096


class MessageSlots:
    """The slots of one direction between two members, the same for both; see `ShmLink`.

    Args:
        words: The shared mapping.
        start: Byte offset of the slots. Their memory must be zero at first.
        slot_bytes: Size of each slot.

    Attributes:
        slot_bytes: Size of each slot.
        written: Index of the word that counts the chunks written.
        taken: Index of the word that counts the chunks taken out.
        headers: Byte offset of the headers, one for each slot.
    """

    def __init__(self, words: Words, start: int, slot_bytes: int) -> None:
        self.slot_bytes = slot_bytes
        self.view = words.view
        self.octets = words.octets
        self.written = (start + _WRITTEN) // 4
        self.taken = (start + _TAKEN) // 4
        self.headers = start + _HEADERS
        self._content = start + _CONTENT
        self._tensor = words.tensor

    @staticmethod
    def nbytes(slot_bytes: int) -> int:
        """Return the bytes of memory for one direction."""
        return _CONTENT + SLOTS * slot_bytes

    def chunk(self, slot: int, dtype: torch.dtype, numel: int) -> torch.Tensor:
        """Return the first `numel` elements of a slot."""
        return self._tensor(self._content + slot * self.slot_bytes, dtype, numel)
