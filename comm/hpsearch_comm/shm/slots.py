"""Slots of shared memory through which chunks pass from member to member, with counts of each member's progress.

The members add to a chunk in their order, and then all copy it out. Each member counts the chunks to which it has added
and the chunks that it has copied, over all operations. The counts determine when a member may act:

    add to chunk c      when the previous member has added to it; for the first member, when the slot is free: when all
                        have copied chunk c - S, where S is the number of slots
    copy chunk c out    when the last member has added to it

So a member only waits for what it needs, and may be several chunks ahead of others. Counts are modulo 2^32.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from hpsearch_comm.errors import CommError
from hpsearch_comm.failure.operation import Operation, Wait
from hpsearch_comm.shm import futex
from hpsearch_comm.shm.barrier import Barrier, Words, look

SLOT = 1 << 20
"""Bytes of a slot: smaller slots need more synchronization, larger slots don't stay in the cache."""

_EACH = 2
"""Slots for each member: one in which it adds or copies, and one by which it may be ahead or behind."""

_SHORTEST, _LONGEST = 100e-6, 10e-3
"""Seconds of a sleep between two polls: counts wake nobody. Each sleep is twice as long as the last."""

_MASK = 0xFFFFFFFF
_HALF = 1 << 31


class Slots:
    """This member's view of the slots.

    Args:
        words: The mapping.
        start: Byte offset of the first slot.
        added: Byte offset of each member's count of chunks added to.
        copied: Byte offset of each member's count of chunks copied.
        index: Index of this rank among the members.
        members: The ranks.
        barrier: The barrier of the same members; its fence and its rules for polling are used.

    Attributes:
        turn: The number of the next chunk.
    """

    def __init__(
        self,
        words: Words,
        start: int,
        added: Sequence[int],
        copied: Sequence[int],
        index: int,
        members: Sequence[int],
        barrier: Barrier,
    ) -> None:
        self._tensor = words.tensor
        self._start = start
        self._number = _EACH * len(members)
        self._view = words.view
        self._added = [offset // 4 for offset in added]
        self._copied = [offset // 4 for offset in copied]
        self._index = index
        self._members = members
        self._barrier = barrier
        self._last = self._added[-1:]
        # The counts that determine whether a chunk may be added to, and by how much they must exceed its number.
        self._before, self._lead = (self._added[index - 1 : index], 1) if index else (self._copied, 1 - self._number)
        self.turn = 0

    @staticmethod
    def nbytes(members: int) -> int:
        """Return the bytes of memory for the slots."""
        return _EACH * members * SLOT

    def view(self, chunk: int, dtype: torch.dtype, numel: int) -> torch.Tensor:
        """Return the first `numel` elements of a chunk's slot."""
        return self._tensor(self._start + chunk % self._number * SLOT, dtype, numel)

    def may_add(self, chunk: int) -> bool:
        """Return whether this member may add to a chunk."""
        return self._reached(self._before, chunk + self._lead)

    def may_copy(self, chunk: int) -> bool:
        """Return whether a chunk is complete and may be copied out."""
        return self._reached(self._last, chunk + 1)

    def tell_added(self, chunk: int) -> None:
        """Announce that this member has added to a chunk, and to all before it."""
        self._tell(self._added[self._index], chunk + 1)

    def tell_copied(self, chunk: int) -> None:
        """Announce that this member has copied a chunk out, and all before it."""
        self._tell(self._copied[self._index], chunk + 1)

    def wait(self, operation: Operation, to_add: int | None, to_copy: int) -> None:
        """Wait until this member may add or copy.

        Args:
            operation: The operation, with its timeout and whether this thread may spin.
            to_add: The next chunk to add to; None if there is none.
            to_copy: The next chunk to copy out.

        Raises:
            CommError: The group has ended meanwhile, a peer has left, or the deadline has passed.
        """

        def ready() -> bool:
            return self.may_copy(to_copy) or (to_add is not None and self.may_add(to_add))

        if look(ready, *self._barrier.looks(operation)):
            return
        wait = Wait(operation)
        pause, counts = _SHORTEST, self._counts()
        while True:
            if ready():
                return
            if counts != (counts := self._counts()):
                wait.progressed()
                pause = _SHORTEST
            try:
                wait.check(self._awaited(to_copy))
            except CommError:
                # A peer that has made progress since the last check may have left again: this is no error.
                if ready():
                    return
                raise
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST)

    def _reached(self, words: Sequence[int], count: int) -> bool:
        view = self._view
        for word in words:
            if (view[word] - count) & _MASK >= _HALF:
                return False
        if not futex.ORDERED:
            self._barrier.fence()
        return True

    def _tell(self, word: int, count: int) -> None:
        if not futex.ORDERED:
            self._barrier.fence()
        self._view[word] = count & _MASK

    def _counts(self) -> list[int]:
        return [self._view[word] for word in (*self._added, *self._copied)]

    def _awaited(self, chunk: int) -> list[int]:
        """Return the ranks that delay a chunk: the next one to add to it, or those that still use its slot."""
        behind = [index for index, word in enumerate(self._added) if not self._reached([word], chunk + 1)][:1]
        if behind == [0]:
            free = chunk + 1 - self._number
            behind = [index for index, word in enumerate(self._copied) if not self._reached([word], free)] or [0]
        other_indices = [index for index in behind if index != self._index]
        return [self._members[index] for index in other_indices] or [
            rank for index, rank in enumerate(self._members) if index != self._index
        ]
