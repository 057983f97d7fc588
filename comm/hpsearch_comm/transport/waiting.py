"""Wait while no transfer can continue."""

from __future__ import annotations

import select
from collections.abc import Collection

from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.failure.operation import Wait
from hpsearch_comm.transport.link import Transfer

_SLICE = 0.05
"""Longest sleep in seconds, so that the group's end is noticed even if it wakes nobody."""


def check(wait: Wait, pending: Collection[Transfer]) -> None:
    """Raise an error if the group has ended, or these transfers made no progress for too long."""
    wait.check({transfer.peer: None for transfer in pending}, streaming=True)


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
