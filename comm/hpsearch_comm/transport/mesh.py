"""Drives the messages of one step, to and from several peers at once, and sleeps well while nothing moves."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.transport.link import Combine, Link, Transfer
from hpsearch_comm.transport.waiting import Patience, Waiter

if TYPE_CHECKING:
    from hpsearch_comm.shm.barrier import Bell

_SPIN = 50e-6
"""Seconds that a wait holds its core before it sleeps: about what going to sleep and waking up would cost."""


class Mesh:
    """This rank's links to its peers.

    Args:
        rank: This rank.
        links: Peer → link.
        bell: Rung by the peers whose links go through shared memory.
    """

    def __init__(self, rank: int, links: Mapping[int, Link], bell: Bell) -> None:
        self.rank = rank
        self._links = dict(links)
        self._bell = bell

    def exchange(
        self,
        operation: Operation,
        sends: Sequence[tuple[int, torch.Tensor]],
        receives: Sequence[tuple[int, torch.Tensor, Combine | None]],
    ) -> None:
        """Send to some peers and receive from some, all at once; return when the last byte is in place.

        What is sent may be changed afterwards: the kernel, or the peer, has it. When it raises, the group has ended,
        and what was to be received may be there in part.

        Args:
            operation: Its `step` must be the same on both sides of a message, and differ from the step before.
            sends: (peer, tensor): at most one to each peer.
            receives: (peer, tensor, combine): at most one from each peer. Without `combine` the tensor is overwritten.

        Raises:
            MismatchError: A peer is in another operation.
            PeerLost: A peer has died, or has left with nothing more on the way from it.
            CommTimeoutError: Nothing moved for the operation's `timeout`.
            CommError: The group has ended meanwhile, for that reason.
        """
        links, bell = self._links, self._bell
        transfers: list[Transfer] = []
        sleeper: _Sleeper | None = None
        try:
            for peer, payload in sends:
                transfers.append(links[peer].send(operation, payload))
            for peer, payload, combine in receives:
                transfers.append(links[peer].receive(operation, payload, combine))
            pending = [transfer for transfer in transfers if not transfer.done]
            while pending:
                # Before the transfers are tried: a ring that they miss ends the sleep at once.
                mark = bell.mark()
                moved = False
                for transfer in pending:
                    if transfer.advance():
                        moved = True
                if moved:
                    pending = [transfer for transfer in pending if not transfer.done]
                    if sleeper is not None:
                        sleeper.progressed()
                    continue
                if sleeper is None:
                    sleeper = _Sleeper(operation, bell)
                sleeper.sleep(pending, mark)
        except BaseException as error:
            # A message is torn: no later one could be told from its rest.
            operation.abort_state.break_off(self.rank, error, f"broke off {operation.signature}:")
            raise

    def close(self) -> None:
        """Close all links, and let go of the memory that some of them go through."""
        for link in self._links.values():
            link.close()
        self._links.clear()
        vars(self).pop("_bell", None)


class _Sleeper:
    """What to do while nothing moves: spin for a moment, look whether the group still stands, sleep."""

    def __init__(self, operation: Operation, bell: Bell) -> None:
        self._operation = operation
        self._patience = Patience(operation)
        self._waiter = Waiter(bell, operation.abort_state)
        self._spin_until = time.perf_counter() + _SPIN if operation.spin else 0.0

    def progressed(self) -> None:
        """Begin anew: something has moved."""
        self._patience.progressed()
        self._waiter.progressed()
        if self._operation.spin:
            self._spin_until = time.perf_counter() + _SPIN

    def sleep(self, pending: Sequence[Transfer], mark: int) -> None:
        """Sleep, at most until something may have moved.

        Args:
            pending: The transfers that didn't move.
            mark: The bell's, from before they were tried.
        """
        if self._spin_until and time.perf_counter() < self._spin_until:
            # Where something else has taken the peer's core, the peer may be waiting for ours.
            os.sched_yield()
            return
        self._patience.check(pending)
        self._waiter.sleep(pending, mark)
