"""Exchange the messages of one step with several peers at once, and sleep while nothing can be transferred."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

import torch

from hpsearch_comm.failure.operation import Operation, Wait
from hpsearch_comm.transport.link import Combine, Link, Transfer, check, sleep

_SPIN = 50e-6
"""Seconds for which a wait holds its core before it sleeps: about the cost of a sleep and a wake-up."""


class Mesh:
    """This rank's links to its peers.

    Args:
        rank: This rank.
        links: The link to each peer.
    """

    def __init__(self, rank: int, links: Mapping[int, Link]) -> None:
        self.rank = rank
        self._links = dict(links)

    def exchange(
        self,
        operation: Operation,
        sends: Sequence[tuple[int, torch.Tensor]],
        receives: Sequence[tuple[int, torch.Tensor, Combine | None]],
    ) -> None:
        """Send to some peers and receive from some, all concurrently. Return when all messages are transferred.

        The sent tensors may be changed afterwards. If an error is raised, the group has ended, and the received tensors
        may be partly written.

        Args:
            operation: Its `step` must be the same on both sides of a message, and differ from the previous step.
            sends: (peer, tensor): at most one to each peer.
            receives: (peer, tensor, combine): at most one from each peer. Without `combine` the tensor is overwritten.

        Raises:
            MismatchError: A peer runs another operation.
            PeerLost: A peer has died, or has left and its data has arrived.
            CommTimeoutError: Nothing was transferred for the operation's `timeout`.
            CommError: The group has ended meanwhile, with this error.
        """
        links = self._links
        transfers: list[Transfer] = []
        wait: Wait | None = None
        spin_until = 0.0
        try:
            for peer, payload in sends:
                transfers.append(links[peer].send(operation, payload))
            for peer, payload, combine in receives:
                transfers.append(links[peer].receive(operation, payload, combine))
            pending = [transfer for transfer in transfers if not transfer.done]
            while pending:
                moved = False
                for transfer in pending:
                    if transfer.advance():
                        moved = True
                if moved:
                    pending = [transfer for transfer in pending if not transfer.done]
                    if wait is not None:
                        wait.progressed()
                        spin_until = time.perf_counter() + _SPIN if operation.spin else 0.0
                    continue
                if wait is None:
                    wait = Wait(operation)
                    spin_until = time.perf_counter() + _SPIN if operation.spin else 0.0
                if spin_until and time.perf_counter() < spin_until:
                    # If another process uses the peer's core, the peer may be waiting for ours.
                    os.sched_yield()
                    continue
                check(wait, pending)
                sleep(pending, operation.abort_state)
        except BaseException as error:
            # A message may be incomplete: its rest couldn't be distinguished from a later message.
            operation.abort_state.break_off(self.rank, error, f"broke off {operation.signature}:")
            raise

    def close(self) -> None:
        """Close all links."""
        for link in self._links.values():
            link.close()
        self._links.clear()
