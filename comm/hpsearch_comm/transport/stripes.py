"""The part of a message that goes through one TCP stream, and a message striped over several."""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.transport.link import Combine, Transfer

if TYPE_CHECKING:
    from hpsearch_comm.transport.tcp_link import TcpLink

__all__ = [
    "CHUNK",
    "TRY_AGAIN",
    "FoldingStripe",
    "OutgoingStripe",
    "ReceivingStripe",
    "Stripe",
    "StripedTransfer",
    "fold",
]

CHUNK = 256 * 1024
"""Bytes moved by one call. Large enough that the call costs nothing beside the copy, small enough to stay in a cache
between the copy out of the kernel and the sum, and to let both directions take turns."""

_MOST_ELEMENTS = (1 << 15) - 64
"""Folded by one call: from 32768 elements on torch would start threads, and a thread beside the caller's must not."""

_TURN = 4
"""Chunks received before the other direction has its turn."""

_FOLD = CHUNK // 4
"""Bytes that are worth folding before the rest of the chunk has arrived: the time until then would be idle."""

TRY_AGAIN = (BlockingIOError, InterruptedError)


class Stripe(Transfer):
    """The part of one message that goes through one stream.

    Args:
        link: The stream's link.
        stream: A socket that doesn't block.
        operation: What the message belongs to.
        header: The message's, where it goes through this stream; else nothing.
        payload: The part's elements.
        view: The bytes that are sent, or where received ones go: the payload's, unless a subclass says otherwise. It
            is of bare memory, so the stripe keeps the payload, which owns that.

    Attributes:
        position: Bytes of the payload's part that have gone through; below 0 while that many of the header are missing.
    """

    position: int
    _events: int

    def __init__(
        self,
        link: TcpLink,
        stream: socket.socket,
        operation: Operation,
        header: bytes,
        payload: torch.Tensor,
        view: memoryview,
    ) -> None:
        self.peer = link.peer
        self.done = False
        self.position = -len(header)
        self._link = link
        self._stream = stream
        self._operation = operation
        self._header = header
        self._payload = payload
        self._view = view
        self._end = payload.nbytes

    def interest(self) -> Sequence[tuple[int, int]]:
        """Give the stream and what it waits for."""
        return ((self._stream.fileno(), self._events),)


class OutgoingStripe(Stripe):
    """Sends the header, where it goes through this stream, and a part of the payload."""

    _events = select.POLLOUT

    def advance(self) -> bool:
        """Send one chunk, or what the kernel takes of it."""
        position, view = self.position, self._view
        try:
            if position < 0:
                count = self._stream.sendmsg((self._header[position:], view[:CHUNK]), (), socket.MSG_NOSIGNAL)
            else:
                count = self._stream.send(view[position : position + CHUNK], socket.MSG_NOSIGNAL)
        except TRY_AGAIN:
            return False
        except OSError as error:
            raise self._link.lost(self._operation, error) from None
        self.sent(count)
        return True

    def sent(self, count: int) -> None:
        """Note that the kernel has taken so many bytes more."""
        self.position += count
        self.done = self.position == self._end


class ReceivingStripe(Stripe):
    """Receives the header, where it comes through this stream, and a part of the payload, right into its place."""

    _events = select.POLLIN

    def advance(self) -> bool:
        """Receive some chunks, until there are no more just now."""
        moved = False
        for _ in range(_TURN):
            room = self._room()
            try:
                if self.position < 0:
                    count = self._stream.recvmsg_into((self._link.arriving[self.position :], room))[0]
                else:
                    count = self._stream.recv_into(room)
            except TRY_AGAIN:
                return moved
            except OSError as error:
                raise self._link.lost(self._operation, error) from None
            if not count:
                raise self._link.lost(self._operation, None)
            moved = True
            self.received(count)
            # A short chunk means that the kernel has no more: asking again would only cost time.
            if self.done or count < len(room):
                break
        return moved

    def received(self, count: int) -> None:
        """Note that so many bytes more have arrived, the header's first.

        Raises:
            MismatchError: The header isn't the one that this operation expects.
        """
        if self.position < 0:
            missing = -self.position
            self.position += min(count, missing)
            if self.position < 0:
                return
            if self._link.arriving != self._header:
                raise self._link.differs(self._operation, self._header)
            count -= missing
        self.position += count
        self._arrived()
        self.done = self.position == self._end

    def _room(self) -> memoryview:
        """Give where the next bytes of the payload belong."""
        start = max(self.position, 0)
        return self._view[start : start + CHUNK]

    def _arrived(self) -> None:
        """Use what has arrived up to `position`."""


class FoldingStripe(ReceivingStripe):
    """Receives chunk after chunk beside the payload, and folds each into its place.

    Args:
        view: A chunk's room, as bytes.
        scratch: The same room, in the payload's dtype.
        combine: Folds an arrived chunk into its place.
    """

    def __init__(
        self,
        link: TcpLink,
        stream: socket.socket,
        operation: Operation,
        header: bytes,
        payload: torch.Tensor,
        view: memoryview,
        scratch: torch.Tensor,
        combine: Combine,
    ) -> None:
        super().__init__(link, stream, operation, header, payload, view)
        self._scratch = scratch
        self._combine = combine
        self._itemsize = payload.element_size()
        self._base = 0  # where in the part the scratch begins
        self._folded = 0  # up to where the part is folded, in bytes

    def _room(self) -> memoryview:
        return self._view[max(self.position, 0) - self._base : self._end - self._base]

    def _arrived(self) -> None:
        position = self.position
        full = position - self._base == CHUNK
        if full or position == self._end or position - self._folded >= _FOLD:
            # An element may have arrived in part; a full scratch and the end fall between two elements.
            start, stop, base = (nbytes // self._itemsize for nbytes in (self._folded, position, self._base))
            fold(self._combine, self._payload[start:stop], self._scratch[start - base : stop - base])
            self._folded = stop * self._itemsize
        if full:
            self._base = position


class StripedTransfer(Transfer):
    """One message over several streams, a contiguous part over each.

    Args:
        stripes: The first carries the header; the others wait until it has gone through, since until then nobody knows
            whether both sides mean the same message.
    """

    def __init__(self, stripes: Sequence[Stripe]) -> None:
        self.peer = stripes[0].peer
        self.done = False
        self._first = stripes[0]
        self._stripes = list(stripes)

    def advance(self) -> bool:
        """Give every stripe its turn."""
        moved = False
        for stripe in self._moving():
            if stripe.advance():
                moved = True
        if moved:
            self._stripes = [stripe for stripe in self._stripes if not stripe.done]
            self.done = not self._stripes
        return moved

    def interest(self) -> Sequence[tuple[int, int]]:
        """Give the streams of the stripes that can move."""
        return [interest for stripe in self._moving() for interest in stripe.interest()]

    def _moving(self) -> Sequence[Stripe]:
        return self._stripes if self._first.position >= 0 else self._stripes[:1]


def fold(combine: Combine, mine: torch.Tensor, theirs: torch.Tensor) -> None:
    """Fold what has arrived into its place, in pieces that torch does in this thread."""
    count = mine.numel()
    if count <= _MOST_ELEMENTS:
        if count:
            combine(mine, theirs)
        return
    for start in range(0, count, _MOST_ELEMENTS):
        stop = start + _MOST_ELEMENTS
        combine(mine[start:stop], theirs[start:stop])
