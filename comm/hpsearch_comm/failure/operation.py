"""A running operation on this rank, and its waits: deadlines, reminders and errors."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import cached_property

from hpsearch_comm.errors import CommTimeoutError, MismatchError, UsageError
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.header import TAIL, Signature, unpack_tail

FIRST_REMINDER = 30.0
"""Seconds of waiting after which the first warning is logged."""

_log = logging.getLogger(__name__)


class Operation:
    """One collective of one group on one rank.

    Args:
        rank: This rank.
        packed: The 96 bytes of the signature, on which every rank must agree.
        timeout: Seconds without progress after which a wait fails.
        abort_state: The group's abort state.
        spin: Whether its waits may hold a core for some microseconds before they sleep: true in the caller's thread.

    Attributes:
        phase: Marks a phase in the timeline: `with operation.phase("reduce-scatter"): ...`.
        step: The number of the current message.
        complaint: A usage error on this rank that was only detected after data had been exchanged. The rank completes
            the operation, so that all ranks stay in step, and raises the error at the end.
    """

    __slots__ = ("__dict__", "abort_state", "packed", "rank", "spin", "timeout")

    # Set in the class, since most operations keep them.
    phase: Callable[[str], AbstractContextManager[object]] = contextlib.nullcontext
    step = 0
    complaint: UsageError | None = None

    def __init__(self, rank: int, packed: bytes, timeout: float, abort_state: AbortState, spin: bool = False) -> None:
        self.rank = rank
        self.packed = packed
        self.timeout = timeout
        self.abort_state = abort_state
        self.spin = spin

    @cached_property
    def signature(self) -> Signature:
        """The signature, unpacked on access."""
        return Signature.unpack(self.packed)

    def header(self, nbytes: int) -> bytes:
        """Return the header of a message of the current step."""
        return self.packed + TAIL.pack(self.step, nbytes)

    def disagree(self, peer: int, theirs: bytes | memoryview, ours: bytes) -> MismatchError:
        """End the group because a peer runs another operation. Return the error, which shows both operations."""
        error = disagreement(self.rank, ours, peer, theirs)
        self.abort_state.fail(error)
        return error


def disagreement(rank: int, ours: bytes | memoryview, peer: int, theirs: bytes | memoryview) -> MismatchError:
    """Return the error for two ranks that call different operations. Arguments are signatures or whole headers."""
    first = f"rank {rank} calls {Signature.unpack(ours)}"
    second = f"rank {peer} calls {Signature.unpack(theirs)}"
    if Signature.unpack(ours) == Signature.unpack(theirs):
        first += ", message {} of {} bytes".format(*unpack_tail(ours))
        second += ", message {} of {} bytes".format(*unpack_tail(theirs))
    return MismatchError(
        f"the ranks disagree: {first}, {second}. Every rank must call the same operations in the same order, "
        "with the same shapes, dtypes and arguments"
    )


def remind(waited: float, timeout: float, rank: int, peers: str, operation: object) -> float:
    """Log a warning about a long wait.

    Args:
        waited: Seconds so far.
        timeout: Seconds after which the wait fails.
        rank: The waiting rank.
        peers: The ranks that it waits for.
        operation: The operation.

    Returns:
        Seconds of waiting after which to warn again: twice as many.
    """
    message = "rank %d has waited %.0f s for %s in %s, without any progress; it gives up after %g s"
    _log.warning(message, rank, waited, peers, operation, timeout)
    return 2 * waited


class Wait:
    """A wait in an operation. Any progress restarts its deadline.

    It is created when the waiting starts, so it costs nothing in the fast path, which never waits.
    """

    __slots__ = ("_due", "_operation", "_since")

    def __init__(self, operation: Operation) -> None:
        self._operation = operation
        self._since = time.monotonic()
        self._due = FIRST_REMINDER

    def progressed(self) -> None:
        """Restart the deadline."""
        self._since = time.monotonic()
        self._due = FIRST_REMINDER

    def check(self, awaited: Iterable[int], *, streaming: bool = False) -> None:
        """Raise an error if the group has ended, an awaited peer has left, or there was no progress for too long.

        Call it before each sleep, and sleep at most for a fraction of a second.

        Args:
            awaited: The ranks that are waited for.
            streaming: Whether their data comes over streams. A goodbye may arrive before data that was sent earlier,
                over another connection: then the end of the stream shows that no more comes.
        """
        operation, abort_state = self._operation, self._operation.abort_state
        awaited = list(awaited)
        if abort_state.error is not None or abort_state.departed:
            for peer in [] if streaming else awaited:
                abort_state.check(peer)
            abort_state.check()
        waited = time.monotonic() - self._since
        if waited < min(self._due, operation.timeout):
            return
        peers = " and ".join(f"rank {peer}" for peer in awaited)
        if waited < operation.timeout:
            self._due = remind(waited, operation.timeout, operation.rank, peers, operation.signature)
            return
        error = CommTimeoutError(
            f"rank {operation.rank} waited {waited:.1f} s for {peers} in {operation.signature}, without any progress: "
            f"{peers} may be stuck, or doing something else. If it is only slow, raise the group's timeout "
            f"(now {operation.timeout:g} s)",
            awaited[0] if awaited else -1,
        )
        operation.abort_state.fail(error)
        raise error
