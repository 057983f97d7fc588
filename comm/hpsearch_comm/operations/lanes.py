"""Lanes: the two directions of send and recv between this rank and a peer, each with its own order.

An envelope precedes each message: the 96 bytes of its signature, with a sequence number for each direction. So the
receiver can choose the receive for a message before the message arrives:

    sender      envelope 0   message 0   envelope 1   message 1   ...
    receiver    envelope 0 → the matching receive → message 0 into its tensor → envelope 1 ...

An envelope is read only while a receive waits for this peer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator

import torch

from hpsearch_comm.errors import PeerLost, RefusedError
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.failure.operation import Operation, Wait
from hpsearch_comm.header import SIGNATURE_BYTES, Signature
from hpsearch_comm.operations.arguments import Call
from hpsearch_comm.operations.messages import Mailbox, Receive, Send, UnexpectedMessage
from hpsearch_comm.transport.link import Link, Transfer, check

MakeOperation = Callable[[bytes], Operation]
"""Creates an operation of this rank with this signature."""

_ENVELOPE = Call.of(Signature(0, "envelope", "none", torch.uint8, (SIGNATURE_BYTES,)), None, None)


class Lane(ABC):
    """One direction between this rank and a peer.

    Attributes:
        peer: The other rank.
        transfer: The current transfer; None if there is none.
    """

    def __init__(self, link: Link, make_operation: MakeOperation) -> None:
        self.peer = link.peer
        self.transfer: Transfer | None = None
        self._link = link
        self._make_operation = make_operation
        self._number = 0
        self._wait: Wait | None = None
        self._moved = False
        self._steps = self._messages()

    def step(self) -> bool:
        """Transfer as much as possible without waiting. Return whether anything was transferred.

        Raises:
            CommError: The peer is gone, or its message doesn't match.
        """
        self._moved = False
        next(self._steps)
        if self._moved:
            self._wait = None
        return self._moved

    def check(self) -> None:
        """Raise an error if an awaited message won't arrive or be sent; called when nothing was transferred.

        Raises:
            PeerLost: The peer is gone.
            CommTimeoutError: There was no progress for too long.
        """
        packed = self._awaited()
        if packed is None or self.transfer is None:
            self._wait = None
            return
        if self._wait is None:
            self._wait = Wait(self._make_operation(packed))
        check(self._wait, [self.transfer])

    def _transferred(self, transfer: Transfer) -> Iterator[None]:
        """Carry a transfer out; yield whenever it has to wait."""
        self.transfer = transfer
        while not transfer.done:
            if transfer.advance():
                self._moved = True
            if not transfer.done:
                yield
        self._moved = True
        self.transfer = None

    @abstractmethod
    def _messages(self) -> Iterator[None]:
        """Transfer all messages; yield whenever there is none, or it has to wait."""

    @abstractmethod
    def _awaited(self) -> bytes | None:
        """Return the signature of the message that is awaited on this lane alone; None if none is."""


class OutgoingLane(Lane):
    """The messages to a peer.

    Attributes:
        queue: The unfinished sends.
    """

    def __init__(self, link: Link, make_operation: MakeOperation) -> None:
        super().__init__(link, make_operation)
        self.queue: deque[Send] = deque()

    def _messages(self) -> Iterator[None]:
        while True:
            while not self.queue:
                yield
            send, number = self.queue[0], self._number
            packed = send.call.packed(number)
            text = torch.frombuffer(bytearray(packed), dtype=torch.uint8)
            yield from self._transferred(self._link.send(self._make_operation(_ENVELOPE.packed(number)), text))
            yield from self._transferred(self._link.send(self._make_operation(packed), send.payload))
            self._number += 1
            self.queue.popleft()
            send.handle.finish(send.tensor)
            del send  # not to keep its tensor

    def _awaited(self) -> bytes | None:
        return self.queue[0].call.packed(self._number) if self.queue else None


class IncomingLane(Lane):
    """The messages that arrive from a peer.

    Attributes:
        receive: The receive that gets the current message; None if there is no message or no matching receive yet.
        ended: Whether the peer has closed the group normally, so that no more messages come.
    """

    def __init__(self, link: Link, make_operation: MakeOperation, mailbox: Mailbox, abort_state: AbortState) -> None:
        super().__init__(link, make_operation)
        self._abort_state = abort_state
        self.receive: Receive | None = None
        self.ended = False
        self._mailbox = mailbox
        self._arriving: Operation | None = None

    @property
    def is_receiving(self) -> bool:
        """Whether a message is arriving, whose envelope has been read."""
        return self._arriving is not None

    def step(self) -> bool:
        """See `Lane.step`. If a peer has left, this is an error only if a receive waits for this peer."""
        try:
            return not self.ended and super().step()
        except PeerLost as error:
            if error.rank != self.peer or self.is_receiving or self._mailbox.first(self.peer) is not None:
                raise
            if self._abort_state.error is not None or self.peer not in self._abort_state.departed:
                raise
            self.ended = True
            self.transfer = None
            return False

    def check(self) -> None:
        """See `Lane.check`."""
        if self.ended and self._mailbox.first(self.peer) is not None:
            self._abort_state.check(self.peer)
        super().check()

    def _messages(self) -> Iterator[None]:
        mailbox, envelope = self._mailbox, torch.empty(SIGNATURE_BYTES, dtype=torch.uint8, device="cpu")
        while True:
            while not mailbox.wants(self.peer):
                yield
            expected = self._make_operation(_ENVELOPE.packed(self._number))
            yield from self._transferred(self._link.receive(expected, envelope))
            message = self._make_operation(envelope.numpy().tobytes())
            announced = message.signature
            if announced.operation != "send_recv" or announced.sequence != self._number:
                raise RefusedError(
                    f"expected the envelope of message {self._number} from rank {self.peer}, got that of {announced}: "
                    "the same version of hpsearch_comm must run on every rank"
                )
            # The message stays with the sender until a receive waits for it, or for a later message.
            while (receive := mailbox.match(self.peer, announced.root)) is None and not mailbox.wants(self.peer):
                yield
            self.receive = receive
            if receive is not None:
                receive.check(message, self.peer)
                room = receive.room()
            else:
                room = torch.empty(announced.nbytes // announced.dtype.itemsize, dtype=announced.dtype, device="cpu")
            self._arriving = message
            yield from self._transferred(self._link.receive(message, room))
            self.receive = self._arriving = None
            self._number += 1
            if receive is not None:
                receive.deliver(room, self.peer)
            else:  # a receive may have been called while it arrived
                mailbox.take_in(UnexpectedMessage(self.peer, message, room))
            del receive, room  # not to keep their tensors

    def _awaited(self) -> bytes | None:
        if self._arriving is not None:
            return self._arriving.packed
        waiting = self._mailbox.first(self.peer)
        return None if waiting is None else waiting.call.packed(self._number)
