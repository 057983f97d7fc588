"""What to do while no transfer moves: sleep well, and give up at the right time."""

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
"""Longest sleep in seconds, so that the group's end is seen even where nothing wakes us for it."""

_SHORTEST, _LONGEST = 50e-6, 2e-3
"""Sleep in seconds on the bell between two looks at the sockets, where a step waits for both: it doubles."""

_GRACE = 60.0
"""Seconds without progress that data of a peer which has left may still take to come through the network."""


class Waiter:
    """How a thread sleeps: on its sockets, on its bell, or on the bell with looks at the sockets.

    Args:
        bell: Rung by the peers whose links go through shared memory.
        abort_state: The group's.
        wake: A descriptor that becomes readable when the thread is to look around; -1 for none.
    """

    def __init__(self, bell: Bell, abort_state: AbortState, wake: int = -1) -> None:
        self._bell = bell
        self._abort_state = abort_state
        self._wake = wake
        self._nap = _SHORTEST

    def progressed(self) -> None:
        """Begin with short sleeps anew: something has moved."""
        self._nap = _SHORTEST

    def sleep(self, pending: Collection[Transfer], mark: int) -> None:
        """Sleep, at most until something may have moved.

        Args:
            pending: The transfers that didn't move.
            mark: The bell's, from before they were tried.
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
            # Sockets can't ring the bell: where both are awaited, look at them ever more rarely.
            self._bell.wait(mark, self._nap if events else _SLICE)
        self._nap = min(2 * self._nap, _LONGEST)

    def _poll(self, events: dict[int, int]) -> None:
        abort_state = self._abort_state
        # Once a peer has left, the group's descriptor stays readable, and the slice has to do.
        if not abort_state.departed and abort_state.event >= 0:
            events[abort_state.event] = select.POLLIN
        if self._wake >= 0:
            events[self._wake] = select.POLLIN
        poll = select.poll()
        for descriptor, event in events.items():
            poll.register(descriptor, event)
        poll.poll(_SLICE * 1000)


class Patience:
    """A wait for transfers, which knows that a goodbye takes another way than the data before it.

    Args:
        operation: What waits.
    """

    def __init__(self, operation: Operation) -> None:
        self._operation = operation
        self._wait = Wait(operation)
        self._gone_since: float | None = None

    def progressed(self) -> None:
        """Start the deadline afresh: something has moved."""
        self._wait.progressed()
        self._gone_since = None

    def check(self, pending: Collection[Transfer]) -> None:
        """Raise if the group has ended, nothing more can come from a peer, or nothing has moved for too long.

        Args:
            pending: The transfers that didn't move.
        """
        try:
            self._wait.check({transfer.peer: None for transfer in pending})
        except PeerLost:
            if self._operation.abort_state.error is not None or not self._may_still_come(pending):
                raise

    def _may_still_come(self, pending: Collection[Transfer]) -> bool:
        """Return whether there may be more from a peer that has left."""
        now = time.monotonic()
        if self._gone_since is None:
            # Whatever it put into memory before it left is there now: one more look.
            self._gone_since = now
            return True
        departed = self._operation.abort_state.departed
        networked = any(transfer.interest() for transfer in pending if transfer.peer in departed)
        return networked and now - self._gone_since < min(_GRACE, self._operation.timeout)
