"""Wait while no transfer can continue: how to sleep, and when to give up."""

from __future__ import annotations

import select
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from hpsearch_comm.errors import PeerLost
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.failure.operation import Operation, Wait
from hpsearch_comm.transport.link import Transfer

if TYPE_CHECKING:
    from hpsearch_comm.shm.barrier import Bell

_SLICE = 0.05
"""Longest sleep in seconds, so that the group's end is noticed even if it wakes nobody."""

_SHORTEST, _LONGEST = 50e-6, 2e-3
"""Sleep in seconds on the bell between two polls of the sockets, if a step waits for both. It doubles each time."""

_GRACE = 60.0
"""Seconds without progress for which data from a peer that has left may still be in the network."""


class Waiter:
    """Lets a thread sleep: on its sockets, on its bell, or on the bell with polls of the sockets.

    Args:
        bell: Rung by the peers whose links use shared memory.
        abort_state: The group's abort state.
        wake: A descriptor that becomes readable to wake the thread; -1 for none.
    """

    def __init__(self, bell: Bell, abort_state: AbortState, wake: int = -1) -> None:
        self._bell = bell
        self._abort_state = abort_state
        self._wake = wake
        self._nap = _SHORTEST

    def progressed(self) -> None:
        """Restart with short sleeps after progress."""
        self._nap = _SHORTEST

    def sleep(self, pending: Collection[Transfer], mark: int) -> None:
        """Sleep until a transfer may be able to continue, or a short time has passed.

        Args:
            pending: The transfers that can't continue.
            mark: The bell's mark from before `advance` was called on them.
        """
        events: dict[int, int] = {}
        shared = False
        for transfer in pending:
            interest = transfer.interest()
            shared = shared or not interest
            for descriptor, event in interest:
                events[descriptor] = events.get(descriptor, 0) | event
        if not shared:
            self._poll(events)
        else:
            # Sockets can't ring the bell: if both are awaited, poll the sockets at growing intervals.
            self._bell.wait(mark, self._nap if events else _SLICE)
        self._nap = min(2 * self._nap, _LONGEST)

    def _poll(self, events: dict[int, int]) -> None:
        abort_state = self._abort_state
        # Once a peer has left, the group's descriptor stays readable: rely on the slice then.
        if not abort_state.departed and abort_state.event >= 0:
            events[abort_state.event] = select.POLLIN
        if self._wake >= 0:
            events[self._wake] = select.POLLIN
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
            if self._operation.abort_state.error is not None or not self._may_still_come(pending):
                raise

    def _may_still_come(self, pending: Collection[Transfer]) -> bool:
        """Return whether data from a peer that has left may still arrive."""
        now = time.monotonic()
        if self._gone_since is None:
            # Data that it wrote to shared memory before it left is visible now: check once more.
            self._gone_since = now
            return True
        departed = self._operation.abort_state.departed
        networked = any(transfer.interest() for transfer in pending if transfer.peer in departed)
        return networked and now - self._gone_since < min(_GRACE, self._operation.timeout)
