"""How a rank leaves: told by the user, with an error, or by the end of its process."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hpsearch_comm.errors import CommError, PeerLost
from hpsearch_comm.fate import Fate

if TYPE_CHECKING:
    from hpsearch_comm.assembly import Assembly
    from hpsearch_comm.turns import Turns

__all__ = ["break_off", "release_at_exit"]


def break_off(fate: Fate, rank: int, error: BaseException) -> None:
    """End the group because of an error of this rank's own; the others are told which."""
    if isinstance(error, CommError):
        fate.fail(error)
        return
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    fate.fail(PeerLost(f"rank {rank} has left the group because of its own {reason}", rank))


def release_at_exit(
    group: object, rank: int, parts: Assembly, turns: Turns, leave: Sequence[Callable[[], None]]
) -> weakref.finalize:  # type: ignore[type-arg]
    """Give back what a group stands on when it is closed, forgotten, or when the process ends.

    Args:
        group: Whose end it is. Nothing else here may keep it.
        rank: The group's.
        parts: What it stands on.
        turns: Its operations; what was called asynchronously is finished first.
        leave: What else is to be done before the goodbye, in this order.

    Returns:
        Call it to do so now; later calls do nothing.
    """
    return weakref.finalize(group, _release, rank, parts, turns, leave)


def _release(rank: int, parts: Assembly, turns: Turns, leave: Sequence[Callable[[], None]]) -> None:
    if turns.inherited:  # a forked child's descriptors are its parent's, and so would be its goodbye
        turns.close()
        return
    # Set when an exception has ended the program; in an interactive session that is only the last of many.
    error = getattr(sys, "last_value", None)
    if error is not None and not hasattr(sys, "ps1") and not sys.flags.interactive:
        break_off(parts.fate, rank, error)
    with contextlib.ExitStack() as closing:
        closing.callback(parts.close)
        for step in reversed(leave):
            closing.callback(step)
        try:
            turns.close()
        except BaseException as interruption:
            break_off(parts.fate, rank, interruption)
            turns.close()  # which ends what is under way
            raise
