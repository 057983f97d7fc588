"""Messages between two ranks of one host, through a few slots of shared memory in each direction.

The sender writes a chunk into the next free slot and increments `written`. The receiver copies or combines the chunk
and increments `taken`: then the slot is free again. Only the sender writes `written`, and only the receiver writes
`taken`, so no lock is needed. After each step, a rank rings the other's bell.

    slot      0        1        2        3
              taken    full     full     free        written = 3, taken = 1 (modulo 2^32)

Each slot has a separate field for a header. A message's header is in the field of its first chunk's slot.
"""

from __future__ import annotations

import torch

from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.header import HEADER_BYTES
from hpsearch_comm.shm import futex
from hpsearch_comm.shm.barrier import LINE, Bell
from hpsearch_comm.shm.copying import copy
from hpsearch_comm.shm.message_slots import SLOTS, MessageSlots
from hpsearch_comm.shm.shm_segment import ShmSegment
from hpsearch_comm.transport.link import Combine, Link, Transfer

_MOST_ELEMENTS = (1 << 15) - LINE
"""Maximum elements of a chunk: from 32768 on, torch would start threads, which a background thread must not do."""

_MASK = 0xFFFFFFFF


class _SharedTransfer(Transfer):
    """A transfer through the slots; the two directions differ in `advance`."""

    __slots__ = ("_bell", "_chunk", "_header", "_moved", "_operation", "_payload", "_slots", "done", "peer")

    def __init__(self, link: ShmLink, slots: MessageSlots, operation: Operation, payload: torch.Tensor) -> None:
        self.peer = link.peer
        self.done = False
        self._slots = slots
        self._bell = link.bell
        self._operation = operation
        self._payload = payload
        self._header: bytes | None = operation.header(payload.nbytes)
        self._moved = 0
        self._chunk = min(slots.slot_bytes // payload.dtype.itemsize, _MOST_ELEMENTS)

    def _piece(self) -> torch.Tensor:
        payload, start = self._payload, self._moved
        if start == 0 and payload.numel() <= self._chunk:
            return payload
        return payload[start : start + self._chunk]

    def _count(self, piece: torch.Tensor) -> None:
        self._moved += piece.numel()
        self.done = self._moved >= self._payload.numel()
        self._bell.ring()


class _Send(_SharedTransfer):
    __slots__ = ()

    def advance(self) -> bool:
        slots, moved = self._slots, False
        view = slots.view
        while not self.done:
            written = view[slots.written]
            if (written - view[slots.taken]) & _MASK >= SLOTS:
                break
            slot = written % SLOTS
            if self._header is not None:
                start = slots.headers + slot * HEADER_BYTES
                slots.octets[start : start + HEADER_BYTES] = self._header
                self._header = None
            piece = self._piece()
            copy(slots.chunk(slot, piece.dtype, piece.numel()), piece)
            if not futex.ORDERED:
                self._bell.ring()
            view[slots.written] = (written + 1) & _MASK
            self._count(piece)
            moved = True
        return moved


class _Receive(_SharedTransfer):
    __slots__ = ("_combine",)

    def __init__(
        self,
        link: ShmLink,
        slots: MessageSlots,
        operation: Operation,
        payload: torch.Tensor,
        combine: Combine | None,
    ) -> None:
        super().__init__(link, slots, operation, payload)
        self._combine = combine

    def advance(self) -> bool:
        slots, moved = self._slots, False
        view = slots.view
        while not self.done:
            taken = view[slots.taken]
            if view[slots.written] == taken:
                break
            if not futex.ORDERED:
                self._bell.ring()
            slot = taken % SLOTS
            if self._header is not None:
                start = slots.headers + slot * HEADER_BYTES
                theirs = slots.octets[start : start + HEADER_BYTES].tobytes()
                if theirs != self._header:
                    raise self._operation.disagree(self.peer, theirs, self._header)
                self._header = None
            piece = self._piece()
            arrived = slots.chunk(slot, piece.dtype, piece.numel())
            if self._combine is None:
                copy(piece, arrived)
            else:
                self._combine(piece, arrived)
            if not futex.ORDERED:
                self._bell.ring()
            view[slots.taken] = (taken + 1) & _MASK
            self._count(piece)
            moved = True
        return moved


class ShmLink(Link):
    """This rank's end of the slots to and from one peer of this host.

    Args:
        peer: The other rank.
        outgoing: The slots that this rank writes.
        incoming: The slots that the peer writes.
        bell: The peer's bell.
    """

    def __init__(self, peer: int, outgoing: MessageSlots, incoming: MessageSlots, bell: Bell) -> None:
        self.peer = peer
        self.bell = bell
        self._outgoing: MessageSlots | None = outgoing
        self._incoming: MessageSlots | None = incoming

    def send(self, operation: Operation, payload: torch.Tensor) -> Transfer:
        """Start to send a message to the peer."""
        assert self._outgoing is not None
        return _Send(self, self._outgoing, operation, payload)

    def receive(self, operation: Operation, payload: torch.Tensor, combine: Combine | None = None) -> Transfer:
        """Start to receive a message from the peer."""
        assert self._incoming is not None
        return _Receive(self, self._incoming, operation, payload, combine)

    def close(self) -> None:
        """Release the memory."""
        self._outgoing = self._incoming = None


def links_within(shm: ShmSegment, channel: int = 0) -> dict[int, Link]:
    """Return a link to each other member of a segment, over one channel, by rank."""
    me = shm.index
    return {
        peer: ShmLink(
            peer,
            shm.messages(me, member, channel),
            shm.messages(member, me, channel),
            shm.bell_of(member, channel),
        )
        for member, peer in enumerate(shm.members)
        if member != me
    }
