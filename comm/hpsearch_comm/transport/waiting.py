"""Wait while no transfer can continue: how to sleep, and when to give up."""

from __future__ import annotations

import select
import time
from collections.abc import Collection

from hpsearch_comm.errors import PeerLost
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.failure.operation import Operation, Wait
from hpsearch_comm.transport.link import Transfer

_SLICE = 0.05
"""Longest sleep in seconds, so that the group's end is noticed even if it wakes nobody."""

_GRACE = 60.0
"""Seconds without progress for which data from a peer that has left may still be in the network."""


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


class Patience:
    """A wait for transfers. A goodbye may arrive before data that was sent earlier, over another connection.

    Args:
        operation: The waiting operation.
    """

    def __init__(self, operation: Operation) -> None:
        self._operation = operation
        self._wait = Wait(operation)
        self._gone_since: float | None = None

    def progressed(self) -> None:
        """Restart the deadline after progress."""
        self._wait.progressed()
        self._gone_since = None

    def check(self, pending: Collection[Transfer]) -> None:
        """Raise an error if the group has ended, an awaited peer has left, or there was no progress for too long.

        Args:
            pending: The transfers that can't continue.
        """
        try:
            self._wait.check({transfer.peer: None for transfer in pending})
        except PeerLost:
            now, operation = time.monotonic(), self._operation
            if self._gone_since is None:
                self._gone_since = now
            if operation.abort_state.error is not None or now - self._gone_since >= min(_GRACE, operation.timeout):
                raise
