"""An operation under way on this rank: what its waits need in order to end well, or to say why they don't."""

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
"""Seconds of waiting that a user should know of."""

_log = logging.getLogger(__name__)


class Operation:
    """One collective of one group on one rank.

    Args:
        rank: This rank.
        packed: The 96 bytes of the signature, on which every rank must agree.
        timeout: Seconds without progress after which a wait gives up.
        abort_state: The group's.
        spin: Whether its waits may hold a core for some microseconds before they sleep: those in its caller's thread.
        phase: Marks a phase in the timeline: `with operation.phase("reduce-scatter"): ...`.

    Attributes:
        complaint: A mistake of this rank's caller that showed only when something had travelled. The rank takes part
            to the end, so that all ranks stay in step, and the caller is told then.
    """

    __slots__ = ("__dict__", "abort_state", "complaint", "packed", "phase", "rank", "spin", "step", "timeout")

    def __init__(
        self,
        rank: int,
        packed: bytes,
        timeout: float,
        abort_state: AbortState,
        *,
        spin: bool = False,
        phase: Callable[[str], AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        self.rank = rank
        self.packed = packed
        self.timeout = timeout
        self.abort_state = abort_state
        self.spin = spin
        self.phase = phase
        self.step = 0
        self.complaint: UsageError | None = None

    @cached_property
    def signature(self) -> Signature:
        """What every rank must agree on; unpacked only when somebody asks."""
        return Signature.unpack(self.packed)

    def header(self, nbytes: int) -> bytes:
        """Return the header of a message of the current step."""
        return self.packed + TAIL.pack(self.step, nbytes)

    def disagree(self, peer: int, theirs: bytes | memoryview, ours: bytes) -> MismatchError:
        """End the group because a peer is in another operation; the error shows both sides."""
        error = disagreement(self.rank, ours, peer, theirs)
        self.abort_state.fail(error)
        return error


def disagreement(rank: int, ours: bytes | memoryview, peer: int, theirs: bytes | memoryview) -> MismatchError:
    """Return the error that shows what two ranks call: their signatures, or whole headers."""
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
    """Log that a wait lasts long.

    Args:
        waited: Seconds so far.
        timeout: Seconds after which it gives up.
        rank: Who waits.
        peers: Whom it waits for.
        operation: What it waits in.

    Returns:
        Seconds of waiting after which to say it again: ever more rarely.
    """
    message = "rank %d has waited %.0f s for %s in %s, without any progress; it gives up after %g s"
    _log.warning(message, rank, waited, peers, operation, timeout)
    return 2 * waited


class Wait:
    """A wait within an operation: its deadline starts afresh with every bit of progress.

    It is made where waiting starts, so that the fast path, which never waits, pays nothing.
    """

    __slots__ = ("_due", "_operation", "_since")

    def __init__(self, operation: Operation) -> None:
        self._operation = operation
        self._since = time.monotonic()
        self._due = FIRST_REMINDER

    def progressed(self) -> None:
        """Start the deadline afresh."""
        self._since = time.monotonic()
        self._due = FIRST_REMINDER

    def check(self, awaited: Iterable[int]) -> None:
        """Raise if the group has ended, an awaited peer has left, or nothing has moved for too long.

        Call it whenever there is nothing else to do, before sleeping; sleep for a fraction of a second at most.
        """
        operation, abort_state = self._operation, self._operation.abort_state
        awaited = list(awaited)
        if abort_state.error is not None or abort_state.departed:
            for peer in awaited:
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
