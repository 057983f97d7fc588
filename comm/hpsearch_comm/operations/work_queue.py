"""Runs a group's operations one at a time: in the caller's thread, or in the queue's behind what was called before."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from hpsearch_comm.errors import CommError, GroupClosedError, UsageError
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.history import History
from hpsearch_comm.operations.arguments import Call
from hpsearch_comm.operations.queue_thread import QueueThread
from hpsearch_comm.operations.work import Handle, LaunchHandle
from hpsearch_comm.timeline import NoTimeline, Timeline

__all__ = ["Prepared", "WorkQueue", "used_within"]

T = TypeVar("T")

_NOTHING: AbstractContextManager[None] = contextlib.nullcontext()


@dataclass(slots=True)
class Prepared(Generic[T]):
    """An operation whose arguments have been checked: what ranks must agree on, and what is to be done."""

    call: Call
    work: Callable[[Operation], T]
    launches: bool = False
    """Whether the work only hands the operation to a GPU, and gives it `UnderWay` in place of its result."""


class WorkQueue:
    """Gives operations their numbers and their turns.

    Args:
        rank: This rank.
        abort_state: The group's.
        history: Keeps what has been called.
        timeline: Records what runs.
        timeout: Seconds without progress after which an operation gives up.
        name: The group's, for the timeline.

    Attributes:
        last_algorithm: Of the operation that began last.
        closed: Whether nothing more is taken.
    """

    def __init__(
        self,
        rank: int,
        abort_state: AbortState,
        history: History,
        timeline: Timeline | NoTimeline,
        timeout: float,
        name: str = "",
    ) -> None:
        self.last_algorithm = "none"
        self._rank = rank
        self._abort_state = abort_state
        self._history = history
        self._timeline = timeline
        self._timeout = timeout
        self._name = name
        # One that its owner may take again: a signal handler that does so is told, in place of waiting for itself.
        self._lock = threading.RLock()
        self._inside = 0  # the thread that is in a call, by its number
        self._numbers = itertools.count()
        self._thread: QueueThread | None = None
        self._process = os.getpid()
        self.closed = False

    @property
    def inherited(self) -> bool:
        """Whether this is the copy of a forked child, who has no part in the group."""
        return self._process != os.getpid()

    def now(self, prepared: Prepared[T]) -> T:
        """Run an operation, behind those that are still under way, and give its result."""
        handle: Handle[T] | None = None
        with self._lock:
            self.check()
            self._inside = threading.get_ident()
            try:
                if self._thread is None or self._thread.idle:
                    result: Any = self._run(prepared, next(self._numbers), spin=True)
                else:
                    handle = self._submit(prepared, blocking=True)
            finally:
                self._inside = 0
        if handle is not None:
            return handle.wait()
        return result.wait() if prepared.launches else result  # type: ignore[no-any-return]

    def later(self, prepared: Prepared[T]) -> Handle[T]:
        """Run an operation in the queue's thread."""
        with self._lock:
            self.check()
            self._inside = threading.get_ident()
            try:
                return self._submit(prepared)
            finally:
                self._inside = 0

    def close(self) -> None:
        """Finish what was submitted, and take nothing more."""
        if self.inherited:
            self.closed = True
            return
        with self._lock:
            self.check_outside()
            self.closed = True
        if self._thread is not None:
            self._thread.close()

    def check_outside(self) -> None:
        """Raise UsageError in a thread that is in one of these calls already, as a signal handler's may be."""
        if self._inside and self._inside == threading.get_ident():
            raise used_within()

    def check(self) -> None:
        """Raise unless an operation may be called.

        Raises:
            GroupClosedError: The group is closed.
            UsageError: This is a forked child, or a thread that is in an operation already.
            CommError: The group has ended.
        """
        if self.closed:
            raise GroupClosedError("the group is closed on this rank: make a new one, or close it later")
        if self.inherited:
            raise UsageError(
                "a group can't be used in a forked child, whose sockets would be its parent's: make the group in the "
                "process that uses it, for example in a data loader's parent only"
            )
        self.check_outside()
        self._abort_state.check()

    def _submit(self, prepared: Prepared[T], *, blocking: bool = False) -> Handle[T]:
        sequence = next(self._numbers)
        if self._thread is None:
            name, timeline = self._name, self._timeline
            self._thread = QueueThread(f"hpsearch-comm-queue-{self._rank}", lambda: timeline.queue_thread(name))
        queued = time.monotonic_ns() if self._timeline.on and not blocking else 0
        title = f"{prepared.call.operation} {sequence}"
        handle = self._thread.submit(title, lambda: self._run(prepared, sequence, queued=queued))
        return LaunchHandle(handle) if prepared.launches else handle

    def _run(self, prepared: Prepared[T], sequence: int, *, spin: bool = False, queued: int = 0) -> T:
        """Run an operation in its turn. An error of it ends the group.

        Args:
            prepared: What runs.
            sequence: The operation's number.
            spin: Whether its waits may hold a core, as in the caller's thread.
            queued: When it was queued, in nanoseconds of `time.monotonic_ns`; 0 for one that wasn't.
        """
        # What this one waited behind may have ended the group. It must send and write nothing then: a peer that is
        # still in the torn operation might take it for the rest of that.
        if self._abort_state.error is not None:
            self._abort_state.check()
        call, timeline = prepared.call, self._timeline
        self.last_algorithm = call.algorithm
        packed = call.packed(sequence)
        operation = Operation(
            self._rank, None, self._timeout, self._abort_state, packed=packed, spin=spin, phase=timeline.phase
        )
        # What is made in inference mode couldn't be changed by operations outside of it.
        outside = torch.inference_mode(False) if torch.is_inference_mode_enabled() else _NOTHING
        what = call.operation, call.nbytes, call.algorithm
        record = timeline.operation(*what, sequence, queued, self._name) if timeline.on else _NOTHING
        try:
            self._history.begin(sequence, packed)
            with outside, record:
                result: Any = prepared.work(operation)
                # The ranks of the next one meet when the GPU has done this one; or its time is to be recorded.
                if prepared.launches and (spin or timeline.on):
                    result.wait()
        except CommError as error:
            self._abort_state.fail(error)
            raise
        except BaseException as error:
            self._abort_state.break_off(self._rank, error)
            raise
        finally:
            self._history.running = None
        if operation.complaint is not None:
            raise operation.complaint
        return result  # type: ignore[no-any-return]


def used_within() -> UsageError:
    """Give the error of a call that interrupts another one of its own thread."""
    return UsageError(
        "a group can't be used or closed within one of its own operations, as a signal handler does that calls it: "
        "raise an exception there, such as SystemExit, which ends the operation on every rank"
    )
