"""One rank's end of an NCCL communicator: called, waited for, aborted and closed, and never stuck.

Each C call returns at once (see `nccl_library`), so a lock around it lets an abort from another thread come in between;
all waiting is done outside the lock, by looking. What ends a wait:

    the GPU has finished           all is well
    the group has failed           PeerLost and so on; the communicator is aborted in the background
    NCCL reports an error          NcclError; a dying peer is often seen here first, so the group's watcher is given a
                                   moment to say who it was
    no end for `timeout` seconds   CommTimeoutError; counted from where this rank's own earlier kernels were done
    a peer has left the group      PeerLost, after a moment in which the operation could still have ended
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hpsearch_comm.cuda.nccl_library import (
    IN_PROGRESS,
    INVALID_ARGUMENT,
    INVALID_USAGE,
    SUCCESS,
    NcclLibrary,
)
from hpsearch_comm.cuda.stream import Event, wait_until
from hpsearch_comm.errors import CommError, CommTimeoutError, GroupClosedError, PeerLost
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.failure.operation import FIRST_REMINDER, remind

__all__ = ["Call", "NcclSession"]

Call = tuple[str, tuple[int | None, ...]]
"""A function of NCCL and its arguments, without the communicator and the stream, which come last in each."""

GRACE_SECONDS = 0.5
"""How long the group's watcher is given to name a dead peer, before NCCL's own error is raised."""


class NcclSession:
    """An NCCL communicator. One thread at a time may call it; `abort` any.

    Args:
        rank: This rank, from 0 to size - 1.
        size: The number of ranks.
        library: NCCL.
        abort_state: The group's. When it fails, the communicator is aborted.
        timeout: Seconds after which an operation that doesn't end is given up.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        library: NcclLibrary,
        abort_state: AbortState,
        timeout: float,
    ) -> None:
        self.rank = rank
        self.size = size
        self.library = library
        self.abort_state = abort_state
        self.timeout = timeout
        self.aborted = False
        """Whether the communicator was given up; what its operations wrote is then not to be trusted."""
        self.settled = False
        """Whether every operation had ended well before; then it is."""
        self._lock = threading.Lock()
        self._comm: int | None = None

    def begin(self, identity: bytes, max_ctas: int | None) -> None:
        """Begin to make the communicator on the current CUDA device; see `start`, which the ranks call together.

        Args:
            identity: What rank 0's `NcclLibrary.unique_id` gave.
            max_ctas: Thread blocks that each kernel may take at most.

        Raises:
            NcclError: NCCL can't use the device.
        """
        self._comm = self.library.init_rank(self.size, identity, self.rank, max_ctas)
        me = weakref.ref(self)
        self.abort_state.on_change(lambda: _abort_if_failed(me))

    @property
    def usable(self) -> bool:
        """Whether the communicator is neither closed nor aborted."""
        return self._comm is not None and not self.aborted

    def call(self, calls: Sequence[Call], stream: int, what: Callable[[], str]) -> None:
        """Hand calls to NCCL, several as one group, and come back when they are on the stream.

        Args:
            calls: Run as one operation, the same on every rank.
            stream: The `cudaStream_t`; nothing else may be put on it before this returns.
            what: Says what the operation is, for errors.
        """
        if not calls:
            return
        name = calls[0][0]
        with self._lock:
            comm, library = self._comm, self.library
            if comm is None:
                raise self.gone()
            if len(calls) == 1:
                result = getattr(library, name)(*calls[0][1], comm, stream)
            else:
                name, result = self._call_group(calls, comm, stream)
        if result == IN_PROGRESS:
            self._settle(name, what)
        elif result != SUCCESS:
            raise self._failed(name, result, what())

    def wait(self, what: Callable[[], str], started: Event, ended: Event, timeout: float | None = None) -> None:
        """Wait until the GPU has reached the end of an operation.

        Args:
            what: Says what the operation is, for errors.
            started: Where the GPU began it.
            ended: Where the GPU has done it.
            timeout: Seconds to wait at most; the operation goes on when they are over.

        Raises:
            PeerLost: A rank has died, or has left the group.
            CommTimeoutError: There was no end for as long as the group allows; or for `timeout` seconds.
            NcclError: NCCL has failed.
        """
        until = math.inf if timeout is None else time.monotonic() + timeout
        wait_until(ended.query, _Guard(self, what, started, until).check)
        if self.aborted and not self.settled:
            # The GPU came to the end because the kernels were made to stop.
            raise self.gone()

    def state(self) -> int:
        """Give NCCL's own view: SUCCESS, IN_PROGRESS, or what went wrong."""
        with self._lock:
            return SUCCESS if self._comm is None else self.library.async_error(self._comm)

    def abort(self) -> None:
        """Give up whatever is under way: kernels that wait for a peer end. From any thread, any number of times."""
        self.aborted = True
        with self._lock:
            comm, self._comm = self._comm, None
            if comm is not None:
                self.library.ncclCommAbort(comm)

    def close(self, timeout: float) -> None:
        """Take leave of the peers in good order, so that nobody's memory goes while another still reads it.

        Every rank calls it. Where one doesn't within `timeout` seconds, or the group has failed, it aborts instead.
        """
        until = time.monotonic() + timeout
        abort_state = self.abort_state
        with self._lock:
            if self._comm is None:
                return
            state = self.library.ncclCommFinalize(self._comm) if abort_state.error is None else IN_PROGRESS
        if state == IN_PROGRESS:
            wait_until(
                lambda: self.state() != IN_PROGRESS or abort_state.error is not None or time.monotonic() > until,
                lambda: None,
            )
            state = self.state()
        if state != SUCCESS or abort_state.error is not None:
            self.abort()
            return
        with self._lock:
            comm, self._comm = self._comm, None
            if comm is not None:
                self.library.ncclCommDestroy(comm)

    def gone(self) -> CommError:
        """Give the error of a call that comes after the end."""
        try:
            self.abort_state.check()
        except CommError as error:
            return error
        return GroupClosedError("the NCCL communicator is closed: make a new group")

    def _call_group(self, calls: Sequence[Call], comm: int, stream: int) -> tuple[str, int]:
        library = self.library
        name, result = "ncclGroupStart", library.ncclGroupStart()
        for function, arguments in calls:
            if result not in (SUCCESS, IN_PROGRESS):
                break
            name, result = function, getattr(library, function)(*arguments, comm, stream)
        # Always: a group that stays open would swallow every later call of this thread.
        end = library.ncclGroupEnd()
        return ("ncclGroupEnd", end) if result in (SUCCESS, IN_PROGRESS) else (name, result)

    def _settle(self, function: str, what: Callable[[], str]) -> None:
        """Wait until NCCL has put on the stream, in the background, what a call has begun."""
        wait_until(lambda: self.state() != IN_PROGRESS, _Guard(self, what).check)
        state = self.state()
        if self.aborted:
            raise self.gone()
        if state != SUCCESS:
            raise self._failed(function, state, what())

    def _failed(self, function: str, result: int, what: str) -> CommError:
        """End the group because NCCL has failed, and give the error to raise."""
        error: CommError = self.library.error(function, result, what)
        # A wrong call is nobody's death.
        until = time.monotonic() + (0.0 if result in (INVALID_ARGUMENT, INVALID_USAGE) else GRACE_SECONDS)
        try:
            wait_until(lambda: time.monotonic() > until, self._check_peers)
        except CommError as better:
            error = better
        self.abort_state.fail(error)
        return error

    def _check_peers(self) -> None:
        self.abort_state.check()
        for peer in list(self.abort_state.left):
            self.abort_state.check(peer)


@dataclass(slots=True)
class _Guard:
    """Ends a wait that will never end by itself. Made where waiting starts."""

    session: NcclSession
    what: Callable[[], str]
    started: Event | None = None
    until: float = math.inf
    begun: float = field(default_factory=time.monotonic)
    left: float | None = None
    due: float = field(default_factory=lambda: FIRST_REMINDER)

    def check(self) -> None:
        session = self.session
        session.abort_state.check()
        state = session.state()
        if state not in (SUCCESS, IN_PROGRESS):
            raise session._failed("ncclCommGetAsyncError", state, self.what())
        now = time.monotonic()
        if self.started is not None:
            # What this rank itself computes before the operation isn't the peers' fault.
            self.begun = now
            if self.started.query():
                self.started = None
        elif session.abort_state.left:
            self._check_left(now)
        if now > self.until:
            raise CommTimeoutError(f"{self.what()} is still under way; it goes on: wait again", -1)
        waited = now - self.begun
        if waited > session.timeout:
            self._give_up(waited)
        if waited > self.due:
            self.due = remind(waited, session.timeout, session.rank, "its peers", self.what())

    def _check_left(self, now: float) -> None:
        """A peer that has left may have done its part; an operation that still doesn't end needs more of it."""
        if self.left is None:
            self.left = now
        elif now - self.left > GRACE_SECONDS:
            peer = min(self.session.abort_state.left)
            self._fail(
                PeerLost(
                    f"rank {peer} has closed the group while rank {self.session.rank} is still in {self.what()}: "
                    "call the same operations on every rank before close()",
                    peer,
                )
            )

    def _give_up(self, waited: float) -> None:
        session = self.session
        self._fail(
            CommTimeoutError(
                f"rank {session.rank} waited {waited:.1f} s for its peers in {self.what()} through NCCL, "
                "without an end: one of them may be stuck, or doing something else. If it is only slow, raise the "
                f"group's timeout (now {session.timeout:g} s)",
                -1,
            )
        )

    def _fail(self, error: CommError) -> None:
        self.session.abort_state.fail(error)
        raise error


def _abort_if_failed(reference: weakref.ref[NcclSession]) -> None:
    """Called in whatever thread saw the end of the group, which must not wait for NCCL."""
    session = reference()
    if session is None or session.aborted or session.abort_state.error is None:
        return
    session.aborted = True
    threading.Thread(target=session.abort, name="hpsearch_comm nccl abort", daemon=True).start()
