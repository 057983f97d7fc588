"""The interface below the algorithms: a non-blocking two-way stream of messages between this rank and one peer.

A message is a header of 112 bytes and a payload. Both sides know the header before it is sent. The receiver compares it
with its own header, so a mismatch is detected before any payload is used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch

from hpsearch_comm.failure.operation import Operation

Combine = Callable[[torch.Tensor, torch.Tensor], object]
"""Combines the receiver's chunk with a received chunk, in place: `lambda mine, theirs: mine.add_(theirs)`."""


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
        """Return the (descriptor, events) to `poll` for when nothing can be transferred; empty for shared memory."""
        return ()


class Link(ABC):
    """This rank's end of the stream to one peer. At most one message is in transfer in each direction."""

    peer: int

    @abstractmethod
    def send(self, operation: Operation, payload: torch.Tensor) -> Transfer:
        """Start to send a message to the peer.

        Args:
            operation: Determines the header; its step is the same on both sides.
            payload: 1-D, contiguous, on the CPU, of any dtype; may be empty. It must not change until `done`.
        """

    @abstractmethod
    def receive(self, operation: Operation, payload: torch.Tensor, combine: Combine | None = None) -> Transfer:
        """Start to receive a message from the peer.

        Args:
            operation: Determines the expected header.
            payload: 1-D, contiguous, on the CPU; filled from its start to its end.
            combine: Combines each received chunk with the payload; without it, the payload is overwritten.
        """

    @abstractmethod
    def close(self) -> None:
        """Release all resources. This doesn't end the peer's waits; the group's abort state does."""
