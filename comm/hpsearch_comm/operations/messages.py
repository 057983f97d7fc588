"""Sends and receives with checked arguments, and how messages find their receives."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from hpsearch_comm.errors import UsageError
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.header import Signature
from hpsearch_comm.operations.arguments import Call, check_rank, check_target, check_tensor, whole_number
from hpsearch_comm.operations.contiguous import flat, put_back
from hpsearch_comm.operations.work import Handle, ReceiveHandle
from hpsearch_comm.shm.copying import copy

_MOST_CALLS = 1024
_LARGEST_TAG = 2**63 - 1


@dataclass(slots=True, eq=False)
class Send:
    """A call of send."""

    handle: Handle[torch.Tensor]
    tensor: torch.Tensor
    """The caller's tensor, which is also the result."""
    payload: torch.Tensor
    """Its elements, 1-D and contiguous."""
    target: int
    call: Call

    @classmethod
    def of(cls, tensor: object, target: Any, tag: Any, size: int) -> Send:
        """Check the arguments of `Group.send`.

        Raises:
            UsageError: An argument is invalid.
        """
        source = _check_cpu("send", tensor)
        rank, call = check_rank("target", target, size), _call(source.dtype, tuple(source.shape), _check_tag(tag))
        return cls(Handle(f"send to rank {rank}"), tensor, flat(source), rank, call)  # type: ignore[arg-type]


@dataclass(slots=True, eq=False)
class Receive:
    """A call of recv."""

    handle: ReceiveHandle
    tensor: torch.Tensor
    """The caller's tensor, which is also the result."""
    target: torch.Tensor
    """The tensor's memory, as a plain torch.Tensor."""
    source: int | None
    """The rank that it waits for; None for any rank."""
    tag: int
    call: Call
    """Description of the expected message: dtype, shape and tag."""

    @classmethod
    def of(cls, tensor: object, source: Any, tag: Any, size: int) -> Receive:
        """Check the arguments of `Group.recv`.

        Raises:
            UsageError: An argument is invalid.
        """
        target = check_target("recv's tensor", _check_cpu("recv", tensor))
        rank = None if source is None else check_rank("source", source, size)
        number = _check_tag(tag)
        call = _call(target.dtype, tuple(target.shape), number)
        handle = ReceiveHandle(f"recv from {'any rank' if rank is None else f'rank {rank}'}")
        return cls(handle, tensor, target, rank, number, call)  # type: ignore[arg-type]

    def room(self) -> torch.Tensor:
        """Return 1-D contiguous memory for the received elements: the tensor's own memory if it is plain."""
        return flat(self.target)

    def check(self, message: Operation, source: int) -> None:
        """Check that a message matches the receive.

        Args:
            message: The message, with its signature.
            source: The sending rank.

        Raises:
            MismatchError: The message has another dtype or shape. This has ended the group.
        """
        ours = self.call.packed(message.signature.sequence)
        if ours != message.packed:
            raise message.disagree(source, message.packed, ours)

    def deliver(self, elements: torch.Tensor, source: int) -> None:
        """Finish the receive. The elements are in the memory that `room` returned."""
        put_back(elements, self.target)
        self.handle.source = source
        self.handle.finish(self.tensor)


@dataclass(slots=True, eq=False)
class UnexpectedMessage:
    """A message that arrived before its receive was called."""

    source: int
    message: Operation
    """The operation of the message, with its signature."""
    elements: torch.Tensor

    @property
    def tag(self) -> int:
        """The tag of the message."""
        return self.message.signature.root

    def deliver_to(self, receive: Receive) -> None:
        """Finish a receive with this message.

        Raises:
            MismatchError: The message has another dtype or shape.
        """
        try:
            receive.check(self.message, self.source)
        except BaseException as error:
            receive.handle.finish(error=error)
            raise
        copy(room := receive.room(), self.elements)
        receive.deliver(room, self.source)


class Mailbox:
    """Matches messages with receives: by source and tag, in the order of arrival.

    A message without a waiting receive stays with its sender, so that no sender fills this rank's memory. It is
    received early and kept only if a receive waits for a later message of the same sender, with another tag.

    Attributes:
        waiting: The receives, in the order in which they were called.
    """

    def __init__(self) -> None:
        self.waiting: list[Receive] = []
        self._unexpected: list[UnexpectedMessage] = []

    def post(self, receive: Receive) -> UnexpectedMessage | None:
        """Return the first kept message that matches; if there is none, add the receive to the waiting ones."""
        for index, unexpected in enumerate(self._unexpected):
            if unexpected.tag == receive.tag and receive.source in (None, unexpected.source):
                return self._unexpected.pop(index)
        self.waiting.append(receive)
        return None

    def match(self, source: int, tag: int) -> Receive | None:
        """Remove and return the first receive that waits for such a message; None if there is none."""
        for index, receive in enumerate(self.waiting):
            if receive.tag == tag and receive.source in (None, source):
                return self.waiting.pop(index)
        return None

    def take_in(self, message: UnexpectedMessage) -> None:
        """Deliver a message to the first matching receive; if there is none, keep it for a later receive.

        Raises:
            MismatchError: The receive expects another dtype or shape.
        """
        receive = self.match(message.source, message.tag)
        if receive is None:
            self._unexpected.append(message)
        else:
            message.deliver_to(receive)

    def wants(self, source: int) -> bool:
        """Return whether a receive waits for this rank or for any rank."""
        return any(receive.source in (None, source) for receive in self.waiting)

    def first(self, source: int | None) -> Receive | None:
        """Return the first receive that waits for exactly this rank; with None, the first that waits for any rank."""
        return next((receive for receive in self.waiting if receive.source == source), None)

    def clear(self) -> list[Receive]:
        """Remove all receives and messages, and return the receives."""
        waiting, self.waiting, self._unexpected = self.waiting, [], []
        return waiting


@lru_cache(_MOST_CALLS)
def _call(dtype: torch.dtype, shape: tuple[int, ...], tag: int) -> Call:
    return Call.of(Signature(0, "send_recv", "none", dtype, shape, root=tag), None, None)


def _check_cpu(name: str, tensor: object) -> torch.Tensor:
    source = check_tensor(name, tensor)
    if not source.is_cpu:
        raise UsageError(
            f"{name} takes a tensor on the CPU, got one on {source.device}: send tensor.cpu(), and move what is "
            "received with tensor.to(device)"
        )
    return source


def _check_tag(tag: Any) -> int:
    number = whole_number(tag)
    if number is None or not 0 <= number <= _LARGEST_TAG:
        raise UsageError(f"tag must be a whole number from 0 to {_LARGEST_TAG}, got {tag!r}")
    return number
