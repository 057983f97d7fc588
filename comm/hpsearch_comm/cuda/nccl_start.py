"""How the ranks start NCCL together, so that in the end either all of them have a communicator or none has.

NCCL starts in the background. Where it fails on one rank, the others may see nothing of it: they wait for that rank in
NCCL until their time is over, and nobody can say in advance on which ranks it will fail. So while they wait, the ranks
tell each other what they see, again and again, until NCCL has started on all of them or failed on one:

    every rank                      runs    runs    done    done
    another                         runs    runs    runs    done
    what they do                    look    look    look    go on

    every rank                      runs    runs
    another                         runs    failed
    what they do                    look    abort, and say on which rank and why
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hpsearch_comm.cuda.nccl_interface import bound_to
from hpsearch_comm.cuda.nccl_library import IN_PROGRESS, SUCCESS
from hpsearch_comm.cuda.nccl_session import NcclSession
from hpsearch_comm.cuda.stream import wait_until
from hpsearch_comm.errors import NcclError

__all__ = ["Gather", "start"]

Gather = Callable[[Any], list[Any]]
"""Gives every rank the values of all, by rank; called by all of them alike. Values are those of JSON."""

LOOK_SECONDS = 0.02
"""How long a rank waits for its own NCCL before it looks at the others'."""


def start(session: NcclSession, gather: Gather, timeout: float, max_ctas: int | None, interface: str | None) -> None:
    """Make the communicator on the current CUDA device, together with all other ranks.

    Args:
        session: This rank's end.
        gather: By which the ranks tell each other what they see.
        timeout: Seconds that NCCL may take.
        max_ctas: Thread blocks that each kernel may take at most.
        interface: Name of the interface that NCCL's sockets are to use; None leaves the choice to NCCL.

    Raises:
        NcclError: NCCL hasn't started on some rank. Every rank raises it, and none has a communicator then.
        PeerLost, CommTimeoutError: Not all ranks have come.
    """
    try:
        with bound_to(interface):
            identity = _shared_identity(session, gather)
            problem = None
            try:
                session.begin(identity, max_ctas)
            except NcclError as error:
                problem = str(error)
            until = time.monotonic() + timeout
            running = problem is None
            while True:
                if running:
                    running, problem = _look(session, until, timeout)
                if not any(_unless_one_fails(gather, running, problem)):
                    return
    except BaseException:
        session.abort()
        raise


def _shared_identity(session: NcclSession, gather: Gather) -> bytes:
    """Give every rank the bytes by which rank 0 tells this communicator from others."""
    identity = problem = None
    if session.rank == 0:
        try:
            identity = session.library.unique_id().hex()
        except NcclError as error:
            problem = str(error)
    return bytes.fromhex(_unless_one_fails(gather, identity, problem)[0])


def _look(session: NcclSession, until: float, timeout: float) -> tuple[bool, str | None]:
    """Wait a moment for NCCL, and say whether it is still starting, and what has gone wrong."""
    look = time.monotonic() + LOOK_SECONDS
    wait_until(lambda: session.state() != IN_PROGRESS or time.monotonic() > look, session.abort_state.check)
    session.abort_state.check()
    state = session.state()
    if state not in (SUCCESS, IN_PROGRESS):
        return False, str(session.library.error("ncclCommInitRankConfig", state))
    if state == IN_PROGRESS and time.monotonic() > until:
        return False, (
            f"it was still waiting for its peers after {timeout:g} s: can they reach each other by the interface that "
            "NCCL chooses? See HPSEARCH_COMM_INTERFACE, NCCL_SOCKET_IFNAME, and NCCL_DEBUG=INFO for what it does"
        )
    return state == IN_PROGRESS, None


def _unless_one_fails(gather: Gather, value: Any, problem: str | None) -> list[Any]:
    """Give the values of all ranks, or raise NcclError on every rank where one has a problem."""
    everyone = gather([value, problem])
    for rank, (_, theirs) in enumerate(everyone):
        if theirs is not None:
            raise NcclError(f"NCCL hasn't started on rank {rank}: {theirs}")
    return [value for value, _ in everyone]
