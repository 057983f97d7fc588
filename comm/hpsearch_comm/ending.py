"""How a rank leaves: told by the user, with an error, or by the end of its process."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable

from hpsearch_comm.assembly import Assembly
from hpsearch_comm.errors import CommError, PeerLost
from hpsearch_comm.fate import Fate

__all__ = ["break_off", "release_at_exit"]


def break_off(fate: Fate, rank: int, error: BaseException) -> None:
    """End the group because of an error of this rank's own; the others are told which."""
    if isinstance(error, CommError):
        fate.fail(error)
        return
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    fate.fail(PeerLost(f"rank {rank} has left the group because of its own {reason}", rank))


def release_at_exit(group: object, parts: Assembly, leave_devices: Callable[[], None], rank: int) -> weakref.finalize:  # type: ignore[type-arg]
    """Give back what a group stands on when it is closed, forgotten, or when the process ends.

    Args:
        group: Whose end it is.
        parts: What it stands on.
        leave_devices: Gives back what it has on GPUs; called first. Must not keep the group.
        rank: The group's.

    Returns:
        Call it to do so now; later calls do nothing.
    """
    return weakref.finalize(group, _release, parts, leave_devices, rank)


def _release(parts: Assembly, leave_devices: Callable[[], None], rank: int) -> None:
    # Set when an exception has ended the program; in an interactive session that is only the last of many.
    error = getattr(sys, "last_value", None)
    if error is not None and not hasattr(sys, "ps1") and not sys.flags.interactive:
        break_off(parts.fate, rank, error)
    try:
        # Before the goodbye, since NCCL's peers take leave of each other together.
        leave_devices()
    finally:
        parts.close()
