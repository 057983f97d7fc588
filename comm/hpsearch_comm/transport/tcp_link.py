"""A link over TCP: small messages take one call on one stream, large ones are striped over all of them."""

from __future__ import annotations

import ctypes
import select
import socket
import struct
import weakref
from collections.abc import Callable, Iterator, Sequence

import torch

from hpsearch_comm.errors import CommError, MismatchError, PeerLost, RefusedError
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.header import HEADER_BYTES
from hpsearch_comm.transport.link import Combine, Link, Transfer

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

_STRIPE = 1024 * 1024
"""Least bytes that are worth another stream: what has fewer than two of these goes through the first alone."""

_ALIGNMENT = 64
"""Stripes begin at multiples of so many elements."""

_NEAR = 100
"""Round trip in µs up to which a peer is near: on this host, or in this rack."""

_NEAR_BUFFER = 128 * 1024
"""Bytes of a stream's send buffer towards a near peer. The kernel doubles it, so that a stream still carries 2.6 GB/s
at a round trip of `_NEAR`. The larger one that the kernel would choose carries no more there, and what waits in it has
left the caches by the time it is read: within a host that costs a third of the rate."""

_memory_at = ctypes.pythonapi.PyMemoryView_FromMemory
_memory_at.restype = ctypes.py_object
_memory_at.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
_WRITABLE = 0x200  # PyBUF_WRITE

_MIN_RTT = struct.Struct("148xI")  # tcpi_min_rtt in Linux's struct tcp_info, in µs


class TcpLink(Link):
    """This rank's end of the streams to one peer.

    Args:
        peer: The rank at the other end.
        streams: Connected TCP sockets, as many and in the same order on both sides. The link owns them.

    Attributes:
        arriving: Where the header of the message that is being received is put.
    """

    def __init__(self, peer: int, streams: Sequence[socket.socket]) -> None:
        self.peer = peer
        self._streams = list(streams)
        self._first = self._streams[0]
        self._header = bytearray(HEADER_BYTES)
        self.arriving = memoryview(self._header)
        self._finished = _Finished(peer)
        self._receiving: Callable[[], Transfer | None] = lambda: None
        self._fitted = False
        self._scratch: dict[int, tuple[torch.Tensor, memoryview]] = {}
        self._typed = torch.empty(0, device="cpu")
        for stream in self._streams:
            stream.setblocking(False)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, operation: Operation, payload: torch.Tensor) -> Transfer:
        """Begin a message to the peer. A small one is usually through when this returns."""
        nbytes = payload.nbytes
        header = operation.header(nbytes)
        if nbytes > CHUNK:
            return self._send_large(operation, payload, header)
        view = _bytes_of(payload)
        try:
            count = self._first.sendmsg((header, view), (), socket.MSG_NOSIGNAL)
        except TRY_AGAIN:
            count = 0
        except OSError as error:
            raise self.lost(operation, error) from None
        if count == HEADER_BYTES + nbytes:
            return self._finished
        stripe = OutgoingStripe(self, self._first, operation, header, payload, view)
        stripe.sent(count)
        return stripe

    def receive(self, operation: Operation, payload: torch.Tensor, combine: Combine | None = None) -> Transfer:
        """Begin to receive a message. A small one that is there already is in its place when this returns."""
        nbytes = payload.nbytes
        header = operation.header(nbytes)
        if nbytes > CHUNK:
            return self._receive_large(operation, payload, combine, header)
        room = _bytes_of(payload) if combine is None else self._chunk(0)[1][:nbytes]
        try:
            count = self._first.recvmsg_into((self._header, room))[0]
        except TRY_AGAIN:
            count = -1
        except OSError as error:
            raise self.lost(operation, error) from None
        if count == HEADER_BYTES + nbytes:
            if self._header != header:
                raise self.differs(operation, header)
            if combine is not None:
                fold(combine, payload, self._typed_chunk(payload))
            return self._finished
        if not count:
            raise self.lost(operation, None)
        stripe = self._receiving_stripe(0, operation, payload, combine, header)
        self._receiving = weakref.ref(stripe)
        if count > 0:
            stripe.received(count)
        return stripe

    def close(self) -> None:
        """Close the streams. What was sent still arrives."""
        for stream in self._streams:
            stream.close()

    def differs(self, operation: Operation, header: bytes) -> MismatchError:
        """End the group because the header that has arrived isn't the one that must; return what to raise."""
        try:
            return operation.disagree(self.peer, self.arriving, header)
        except RefusedError as reason:
            error = MismatchError(
                f"rank {operation.rank} waits for a message of {operation.signature}, and rank {self.peer} sent what "
                f"isn't one: {reason}"
            )
            operation.abort_state.fail(error)
            return error

    def lost(self, operation: Operation, cause: OSError | None) -> CommError:
        """End the group because a stream has broken.

        Args:
            operation: What was under way.
            cause: What the socket said; None where the stream just ended.

        Returns:
            What to raise.

        Raises:
            CommError: What the peer had sent before, or what the group knows, is a better reason.
        """
        receiving, self._receiving = self._receiving(), lambda: None
        if receiving is not None and not receiving.done:
            # A peer that gave up has sent its header first, and that may say why.
            receiving.advance()
        operation.abort_state.await_verdict(self.peer)
        how = "it was closed at the other end" if cause is None else f"{type(cause).__name__}: {cause}"
        error = PeerLost(
            f"rank {operation.rank} lost its connection to rank {self.peer} in {operation.signature} ({how}): the "
            "process has died, or the network between them has failed. See that rank's own output",
            self.peer,
        )
        operation.abort_state.fail(error)
        return error

    def _send_large(self, operation: Operation, payload: torch.Tensor, header: bytes) -> Transfer:
        if not self._fitted:
            self._fit_buffers()
        stripes = [
            OutgoingStripe(self, self._streams[index], operation, b"" if index else header, part, _bytes_of(part))
            for index, part in self._stripes(payload)
        ]
        return stripes[0] if len(stripes) == 1 else StripedTransfer(stripes)

    def _receive_large(
        self, operation: Operation, payload: torch.Tensor, combine: Combine | None, header: bytes
    ) -> Transfer:
        stripes = [
            self._receiving_stripe(index, operation, part, combine, b"" if index else header)
            for index, part in self._stripes(payload)
        ]
        transfer = stripes[0] if len(stripes) == 1 else StripedTransfer(stripes)
        self._receiving = weakref.ref(transfer)
        return transfer

    def _receiving_stripe(
        self, index: int, operation: Operation, payload: torch.Tensor, combine: Combine | None, header: bytes
    ) -> ReceivingStripe:
        stream = self._streams[index]
        if combine is None:
            return ReceivingStripe(self, stream, operation, header, payload, _bytes_of(payload))
        scratch, view = self._chunk(index)
        return FoldingStripe(self, stream, operation, header, payload, view, scratch.view(payload.dtype), combine)

    def _stripes(self, payload: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
        """Split a payload over the streams, the same way on both sides: (stream, its part)."""
        count = max(1, min(len(self._streams), payload.nbytes // _STRIPE))
        if count == 1:
            yield 0, payload
            return
        step = -(-payload.numel() // (count * _ALIGNMENT)) * _ALIGNMENT
        for index in range(count):
            yield index, payload[index * step : (index + 1) * step]

    def _chunk(self, index: int) -> tuple[torch.Tensor, memoryview]:
        """Return the buffer of a stream for chunks to combine: as a tensor, and as bytes."""
        chunk = self._scratch.get(index)
        if chunk is None:
            scratch = torch.empty(CHUNK, dtype=torch.uint8, device="cpu")
            chunk = self._scratch[index] = (scratch, _bytes_of(scratch))
        return chunk

    def _typed_chunk(self, payload: torch.Tensor) -> torch.Tensor:
        """Return the first stream's buffer as elements of the payload's dtype; usually the same as the last time."""
        typed = self._typed
        if typed.dtype is not payload.dtype or typed.numel() != payload.numel():
            typed = self._typed = self._chunk(0)[0].view(payload.dtype)[: payload.numel()]
        return typed

    def _fit_buffers(self) -> None:
        """Keep what is in flight to a near peer small enough for the caches; until it proves near, look again."""
        facts = self._first.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MIN_RTT.size)
        # A kernel that doesn't know gives fewer bytes, or zero.
        round_trip = _MIN_RTT.unpack(facts)[0] if len(facts) == _MIN_RTT.size else 0
        if 0 < round_trip <= _NEAR:
            self._fitted = True
            for stream in self._streams:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _NEAR_BUFFER)


class _Finished(Transfer):
    """A message that was through as soon as it began."""

    done = True

    def __init__(self, peer: int) -> None:
        self.peer = peer

    def advance(self) -> bool:
        return False


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return a tensor's memory as bytes, for any dtype; the caller must keep the tensor alive.

    A third of what `tensor.view(torch.uint8).numpy()` costs.
    """
    nbytes = tensor.nbytes
    return _memory_at(tensor.data_ptr(), nbytes, _WRITABLE) if nbytes else memoryview(bytearray())


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
        """Return the stream and the events that it waits for."""
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
        """Return the buffer for the next bytes of the payload."""
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
        """Advance every stripe."""
        moved = False
        for stripe in self._moving():
            if stripe.advance():
                moved = True
        if moved:
            self._stripes = [stripe for stripe in self._stripes if not stripe.done]
            self.done = not self._stripes
        return moved

    def interest(self) -> Sequence[tuple[int, int]]:
        """Return the streams of the stripes that can advance."""
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
