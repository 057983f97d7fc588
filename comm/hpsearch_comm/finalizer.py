"""How a rank leaves: told by the user, with an error, or by the end of its process."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence

from hpsearch_comm.assembly import Assembly
from hpsearch_comm.operations.work_queue import WorkQueue

__all__ = ["release"]


def release(rank: int, parts: Assembly, work_queue: WorkQueue, leave: Sequence[Callable[[], None]]) -> None:
    """Release what a group stands on: when it is closed, forgotten, or when the process ends.

    Args:
        rank: The group's.
        parts: What it stands on.
        work_queue: Its operations; what was called asynchronously is finished first, and what is to be sent is sent.
        leave: What else is to be done before the goodbye, in this order.
    """
    if work_queue.inherited:  # a forked child's descriptors are its parent's, and so would be its goodbye
        work_queue.close()
        return
    # Set when an exception has ended the program; in an interactive session that is only the last of many.
    error = getattr(sys, "last_value", None)
    if error is not None and not hasattr(sys, "ps1") and not sys.flags.interactive:
        parts.abort_state.break_off(rank, error)
    with contextlib.ExitStack() as closing:
        closing.callback(parts.close)
        for step in reversed(leave):
            closing.callback(step)
        try:
            work_queue.close()
            parts.messages.finish()
        except BaseException as interruption:
            parts.abort_state.break_off(rank, interruption)
            work_queue.close()  # which ends what is under way
            parts.messages.finish()
            raise
