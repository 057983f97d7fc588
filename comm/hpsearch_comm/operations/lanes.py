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
from collections.abc import Callable

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

    def step(self) -> bool:
        """Transfer as much as possible without waiting. Return whether anything was transferred.

        Raises:
            CommError: The peer is gone, or its message doesn't match.
        """
        moved = False
        while self.transfer is not None or self._begin():
            assert self.transfer is not None
            if not self.transfer.done and not self.transfer.advance():
                break
            moved = True
            if not self.transfer.done:
                break
            self.transfer = None
            self._complete()
        if moved:
            self._wait = None
        return moved

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

    @abstractmethod
    def _begin(self) -> bool:
        """Start the next transfer, if there is one; return whether one was started."""

    @abstractmethod
    def _complete(self) -> None:
        """Process a transfer that is done."""

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
        self._announced = False

    def _begin(self) -> bool:
        if not self.queue:
            return False
        head, number = self.queue[0], self._number
        packed = head.call.packed(number)
        if self._announced:
            self.transfer = self._link.send(self._make_operation(packed), head.payload)
        else:
            text = torch.frombuffer(bytearray(packed), dtype=torch.uint8)
            self.transfer = self._link.send(self._make_operation(_ENVELOPE.packed(number)), text)
        return True

    def _complete(self) -> None:
        self._announced = not self._announced
        if not self._announced:
            self._number += 1
            send = self.queue.popleft()
            send.handle.finish(send.tensor)

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
        self._envelope = torch.empty(SIGNATURE_BYTES, dtype=torch.uint8, device="cpu")
        self._message: Operation | None = None  # from its envelope
        self._room: torch.Tensor | None = None

    @property
    def is_receiving(self) -> bool:
        """Whether a message is arriving."""
        return self._room is not None

    def step(self) -> bool:
        """See `Lane.step`. If a peer has left, this is an error only if a receive waits for this peer."""
        try:
            return super().step()
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

    def _begin(self) -> bool:
        if self._message is not None:
            return not self.ended and self._begin_message(self._message)
        if self.ended or not self._mailbox.wants(self.peer):
            return False
        operation = self._make_operation(_ENVELOPE.packed(self._number))
        self.transfer = self._link.receive(operation, self._envelope)
        return True

    def _begin_message(self, message: Operation) -> bool:
        announced = message.signature
        receive = self._mailbox.match(self.peer, announced.root)
        if receive is None and not self._mailbox.wants(self.peer):
            return False  # it stays with the sender until a receive waits for it, or for a later message
        self.receive = receive
        if receive is not None:
            receive.check(message, self.peer)
            self._room = receive.room()
        else:
            numel = announced.nbytes // announced.dtype.itemsize
            self._room = torch.empty(numel, dtype=announced.dtype, device="cpu")
        self.transfer = self._link.receive(message, self._room)
        return True

    def _complete(self) -> None:
        if self._room is None:
            self._open_envelope()
            return
        assert self._message is not None
        receive, unexpected = self.receive, UnexpectedMessage(self.peer, self._message, self._room)
        self.receive = self._room = self._message = None
        self._number += 1
        if receive is not None:
            receive.deliver(unexpected.elements, self.peer)
        else:
            self._mailbox.take_in(unexpected)  # a receive may have been called while it arrived

    def _open_envelope(self) -> None:
        self._message = self._make_operation(self._envelope.numpy().tobytes())
        announced = self._message.signature
        if announced.operation != "send_recv" or announced.sequence != self._number:
            raise RefusedError(
                f"expected the envelope of message {self._number} from rank {self.peer}, got that of {announced}: the "
                "same version of hpsearch_comm must run on every rank"
            )

    def _awaited(self) -> bytes | None:
        if self._message is not None and self.is_receiving:
            return self._message.packed
        waiting = self._mailbox.first(self.peer)
        return None if waiting is None else waiting.call.packed(self._number)
