"""The seam under the algorithms: a two-way stream of messages between this rank and one peer, which never blocks.

A message is a header of 112 bytes and a payload. Both sides know the header before it travels: the receiver compares it
with its own, so ranks that disagree find out before any payload is used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch

from hpsearch_comm.failure.operation import Operation

Combine = Callable[[torch.Tensor, torch.Tensor], object]
"""Folds an arrived chunk into a chunk of the receiver's tensor, in place: `lambda mine, theirs: mine.add_(theirs)`."""


class Transfer(ABC):
    """A message under way in one direction. Whoever drives it calls `advance` until it is `done`."""

    peer: int
    done: bool

    @abstractmethod
    def advance(self) -> bool:
        """Move as much as can be moved without waiting; True if anything moved.

        Raises:
            MismatchError: The peer is in another operation.
            PeerLost: The stream has ended.
        """

    def interest(self) -> Sequence[tuple[int, int]]:
        """Return what to `poll` for, as (descriptor, events), when nothing moves; empty for shared memory."""
        return ()


class Link(ABC):
    """This rank's end of the stream to one peer. At most one message is under way in each direction."""

    peer: int

    @abstractmethod
    def send(self, operation: Operation, payload: torch.Tensor) -> Transfer:
        """Begin a message to the peer.

        Args:
            operation: Gives the header; its step is the same on both sides.
            payload: 1-D, contiguous, on the CPU, of any dtype; may be empty. It must stay as it is until `done`.
        """

    @abstractmethod
    def receive(self, operation: Operation, payload: torch.Tensor, combine: Combine | None = None) -> Transfer:
        """Begin to receive a message from the peer.

        Args:
            operation: Gives the header that must arrive.
            payload: 1-D, contiguous, on the CPU; filled from its start to its end.
            combine: Folds each arrived chunk into its place; without it, it is overwritten.
        """

    @abstractmethod
    def close(self) -> None:
        """Release everything; the peer's waits end by the group's abort state, not by this."""
