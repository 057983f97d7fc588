"""A few slots of shared memory through which messages go from one member to another, chunk by chunk."""

from __future__ import annotations

import torch

from hpsearch_comm.shm.barrier import LINE, Words

SLOTS = 4
SLOT_BYTES = 128 << 10
"""Of a slot between few ranks; see `piece_bytes`."""

_WRITTEN, _TAKEN, _HEADERS, _CONTENT = 0, 2 * LINE, 4 * LINE, 4096


class MessageSlots:
    """One direction between two members, as both see it; see `ShmLink`.

    Args:
        words: The shared mapping.
        start: Byte offset of the slots, whose memory is zero when the mapping is new.
        slot_bytes: Of each slot.

    Attributes:
        slot_bytes: Of each slot.
        written: Index of the word that counts the chunks written.
        taken: Index of the word that counts those taken out.
        headers: Byte offset of the headers, one beside each slot.
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
        """Return how much memory one direction takes."""
        return _CONTENT + SLOTS * slot_bytes

    def chunk(self, slot: int, dtype: torch.dtype, numel: int) -> torch.Tensor:
        """Return the first elements of a slot."""
        return self._tensor(self._content + slot * self.slot_bytes, dtype, numel)
