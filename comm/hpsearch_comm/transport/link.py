"""A link: messages between this rank and one peer, over a Unix socket or TCP streams.

A message is a header of 112 bytes and a payload. Both sides know the header before it is sent. The receiver compares it
with its own header, so a mismatch is detected before any payload is used. Small messages take one call on one stream,
large messages are striped over all streams.
"""

from __future__ import annotations

import ctypes
import select
import socket
import struct
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence

import torch

from hpsearch_comm.errors import CommError, MismatchError, PeerLost, RefusedError
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.failure.operation import Operation, Wait
from hpsearch_comm.header import HEADER_BYTES

Combine = Callable[[torch.Tensor, torch.Tensor], object]
"""Combines the receiver's chunk with a received chunk, in place: `lambda mine, theirs: mine.add_(theirs)`."""

CHUNK = 256 * 1024
"""Bytes transferred by one call. Large enough that the overhead of the call is small, small enough that the data stays
in a cache between the copy out of the kernel and the sum, and that both directions can alternate."""

_MOST_ELEMENTS = (1 << 15) - 64
"""Maximum elements combined by one call: from 32768 on, torch would start threads; a background thread must not."""

_TURN = 4
"""Chunks received before the other direction continues."""

_FOLD = CHUNK // 4
"""Minimum bytes to combine before the rest of the chunk has arrived: otherwise the time until then would be idle."""

TRY_AGAIN = (BlockingIOError, InterruptedError)

_STRIPE = 1024 * 1024
"""Minimum bytes of a stripe: a message with less than twice as many uses only the first stream."""

_ALIGNMENT = 64
"""Stripes start at multiples of this number of elements."""

_NEAR = 100
"""Round-trip time in µs up to which a peer is near: on this host, or in this rack."""

_NEAR_BUFFER = 128 * 1024
"""Bytes of a stream's send buffer to a near peer. The kernel doubles it, so a stream still carries 2.6 GB/s at a round
trip of `_NEAR`. A larger buffer, as the kernel would choose, carries no more there, and its data has left the caches
before it is read: within a host that costs a third of the throughput."""

_SLICE = 0.05
"""Longest sleep in seconds, so that the group's end is noticed even if it wakes nobody."""

_memory_at = ctypes.pythonapi.PyMemoryView_FromMemory
_memory_at.restype = ctypes.py_object
_memory_at.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
_WRITABLE = 0x200  # PyBUF_WRITE

_MIN_RTT = struct.Struct("148xI")  # tcpi_min_rtt in Linux's struct tcp_info, in µs


class Transfer(ABC):
    """A message in transfer, in one direction. Call `advance` until it is `done`."""

    peer: int
    done: bool

    @abstractmethod
    def advance(self) -> bool:
        """Transfer as much as possible without waiting. Return whether anything was transferred.

        Raises:
            MismatchError: The peer runs another operation.
            PeerLost: The stream has ended.
        """

    def interest(self) -> Sequence[tuple[int, int]]:
        """Return the (descriptor, events) to `poll` for when nothing can be transferred."""
        return ()


class Link:
    """This rank's end of the streams to one peer. At most one message is in transfer in each direction.

    Args:
        peer: The rank at the other end.
        streams: Connected Unix or TCP sockets, as many and in the same order on both sides. The link owns them.

    Attributes:
        arriving: Buffer for the header of the message that is being received.
    """

    def __init__(self, peer: int, streams: Sequence[socket.socket]) -> None:
        self.peer = peer
        self._streams = list(streams)
        self._first = self._streams[0]
        self._header = bytearray(HEADER_BYTES)
        self.arriving = memoryview(self._header)
        self._finished = _Finished(peer)
        self._receiving: Callable[[], Transfer | None] = lambda: None
        self._fitted = self._first.family == socket.AF_UNIX
        self._scratch: dict[int, tuple[torch.Tensor, memoryview]] = {}
        self._typed = torch.empty(0, device="cpu")
        for stream in self._streams:
            stream.setblocking(False)

    def send(self, operation: Operation, payload: torch.Tensor) -> Transfer:
        """Start to send a message to the peer. A small message is usually sent when this returns.

        Args:
            operation: Determines the header; its step is the same on both sides.
            payload: 1-D, contiguous, on the CPU, of any dtype; may be empty. It must not change until `done`.
        """
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
        """Start to receive a message. A small message that has already arrived is received when this returns.

        Args:
            operation: Determines the expected header.
            payload: 1-D, contiguous, on the CPU; filled from its start to its end.
            combine: Combines each received chunk with the payload; without it, the payload is overwritten.
        """
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
        """Close the streams. Sent data still arrives. The group's abort state ends the peer's waits."""
        for stream in self._streams:
            stream.close()

    def differs(self, operation: Operation, header: bytes) -> MismatchError:
        """End the group because the received header isn't the expected one. Return the error to raise."""
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
            operation: The running operation.
            cause: The socket's error; None if the stream ended without one.

        Returns:
            The error to raise.

        Raises:
            CommError: A more specific error: the peer had sent another header, or the group has ended.
        """
        receiving, self._receiving = self._receiving(), lambda: None
        if receiving is not None and not receiving.done:
            # A peer that failed may have sent its header before, which may show a mismatch.
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
        """Split a payload over the streams, the same way on both sides: (index of the stream, its part)."""
        count = max(1, min(len(self._streams), payload.nbytes // _STRIPE))
        if count == 1:
            yield 0, payload
            return
        step = -(-payload.numel() // (count * _ALIGNMENT)) * _ALIGNMENT
        for index in range(count):
            yield index, payload[index * step : (index + 1) * step]

    def _chunk(self, index: int) -> tuple[torch.Tensor, memoryview]:
        """Return a stream's buffer for chunks that are combined: as a tensor, and as bytes."""
        chunk = self._scratch.get(index)
        if chunk is None:
            scratch = torch.empty(CHUNK, dtype=torch.uint8, device="cpu")
            chunk = self._scratch[index] = (scratch, _bytes_of(scratch))
        return chunk

    def _typed_chunk(self, payload: torch.Tensor) -> torch.Tensor:
        """Return the first stream's buffer viewed in the payload's dtype and length. The last view is cached."""
        typed = self._typed
        if typed.dtype is not payload.dtype or typed.numel() != payload.numel():
            typed = self._typed = self._chunk(0)[0].view(payload.dtype)[: payload.numel()]
        return typed

    def _fit_buffers(self) -> None:
        """Limit the send buffers to a near peer, so that data stays in the caches. Called until the peer is near."""
        facts = self._first.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MIN_RTT.size)
        # A kernel without this field returns fewer bytes, or zero.
        round_trip = _MIN_RTT.unpack(facts)[0] if len(facts) == _MIN_RTT.size else 0
        if 0 < round_trip <= _NEAR:
            self._fitted = True
            for stream in self._streams:
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _NEAR_BUFFER)


class _Finished(Transfer):
    """A message that was completely transferred at once."""

    done = True

    def __init__(self, peer: int) -> None:
        self.peer = peer

    def advance(self) -> bool:
        return False


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return a tensor's memory as bytes, for any dtype; the caller must keep the tensor alive.

    It takes a third of the time of `tensor.view(torch.uint8).numpy()`.
    """
    nbytes = tensor.nbytes
    return _memory_at(tensor.data_ptr(), nbytes, _WRITABLE) if nbytes else memoryview(bytearray())


class Stripe(Transfer):
    """The part of a message that is transferred over one stream.

    Args:
        link: The stream's link.
        stream: A non-blocking socket.
        operation: The operation of the message.
        header: The message's header if this stream carries it; else empty.
        payload: The elements of the part.
        view: The bytes to send, or the buffer for received bytes: the payload's memory, unless a subclass uses another
            buffer. A view doesn't own its memory, so the stripe keeps a reference to the payload.

    Attributes:
        position: Bytes of the part that are transferred; negative while as many bytes of the header are missing.
    """

    position: int
    _events: int

    def __init__(
        self,
        link: Link,
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
        """Return the stream's descriptor and the events to wait for."""
        return ((self._stream.fileno(), self._events),)


class OutgoingStripe(Stripe):
    """Sends the header, if this stream carries it, and a part of the payload."""

    _events = select.POLLOUT

    def advance(self) -> bool:
        """Send one chunk, or as much of it as the kernel accepts."""
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
        """Record that the kernel has accepted `count` more bytes."""
        self.position += count
        self.done = self.position == self._end


class ReceivingStripe(Stripe):
    """Receives the header, if this stream carries it, and a part of the payload, directly into its memory."""

    _events = select.POLLIN

    def advance(self) -> bool:
        """Receive chunks until no more data is available, at most `_TURN` of them."""
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
            # A short chunk means that the kernel has no more data: another call would only cost time.
            if self.done or count < len(room):
                break
        return moved

    def received(self, count: int) -> None:
        """Record that `count` more bytes have arrived, those of the header first.

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
        """Process the data that has arrived up to `position`."""


class FoldingStripe(ReceivingStripe):
    """Receives chunks into a separate buffer, and combines each with the payload.

    Args:
        view: The buffer for a chunk, as bytes.
        scratch: The same buffer, in the payload's dtype.
        combine: Combines the payload with a received chunk.
    """

    def __init__(
        self,
        link: Link,
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
        self._base = 0  # position in the part at which the scratch starts
        self._folded = 0  # position in the part up to which it is combined, in bytes

    def _room(self) -> memoryview:
        return self._view[max(self.position, 0) - self._base : self._end - self._base]

    def _arrived(self) -> None:
        position = self.position
        full = position - self._base == CHUNK
        if full or position == self._end or position - self._folded >= _FOLD:
            # The last element may be incomplete, except if the scratch is full or the part ends.
            start, stop, base = (nbytes // self._itemsize for nbytes in (self._folded, position, self._base))
            fold(self._combine, self._payload[start:stop], self._scratch[start - base : stop - base])
            self._folded = stop * self._itemsize
        if full:
            self._base = position


class StripedTransfer(Transfer):
    """A message over several streams, with a contiguous part on each.

    Args:
        stripes: The first stripe carries the header. The others wait until the header is transferred, because before
            that it is unknown whether both sides expect the same message.
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
    """Combine received data with the payload, in pieces for which torch starts no threads."""
    count = mine.numel()
    if count <= _MOST_ELEMENTS:
        if count:
            combine(mine, theirs)
        return
    for start in range(0, count, _MOST_ELEMENTS):
        stop = start + _MOST_ELEMENTS
        combine(mine[start:stop], theirs[start:stop])


def check(wait: Wait, pending: Collection[Transfer]) -> None:
    """Raise an error if the group has ended, or these transfers made no progress for too long."""
    wait.check({transfer.peer: None for transfer in pending}, streaming=True)


def sleep(pending: Collection[Transfer], abort_state: AbortState, wake: int = -1) -> None:
    """Sleep until a transfer may be able to continue, or a short time has passed.

    Args:
        pending: The transfers that can't continue.
        abort_state: The group's abort state.
        wake: A descriptor that becomes readable to wake the thread; -1 for none.
    """
    events: dict[int, int] = {}
    for transfer in pending:
        for descriptor, event in transfer.interest():
            events[descriptor] = events.get(descriptor, 0) | event
    # Once a peer has left, the group's descriptor stays readable: rely on the slice then.
    if not abort_state.departed and abort_state.event >= 0:
        events[abort_state.event] = select.POLLIN
    if wake >= 0:
        events[wake] = select.POLLIN
    poll = select.poll()
    for descriptor, event in events.items():
        poll.register(descriptor, event)
    poll.poll(_SLICE * 1000)
