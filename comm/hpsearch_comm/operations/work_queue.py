"""Runs a group's operations one at a time: in the caller's thread, or in the queue's behind what was called before."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from hpsearch_comm.errors import CommError, GroupClosedError, UsageError
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.history import History
from hpsearch_comm.operations.arguments import Call
from hpsearch_comm.operations.way import Turn
from hpsearch_comm.operations.work import Handle, LaunchHandle
from hpsearch_comm.timeline import NoTimeline, Timeline


class QueueThread:
    """Runs operations in order, away from the thread that asked for them.

    Args:
        name: Of the thread.
        on_start: Called first in the thread.
    """

    def __init__(self, name: str, on_start: Callable[[], object]) -> None:
        self._tasks: queue.SimpleQueue[tuple[Handle[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._last: Handle[Any] | None = None
        self._on_start = on_start
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Return whether every submitted operation has ended."""
        return self._last is None or self._last.done()

    def submit(self, name: str, task: Callable[[], Any]) -> Handle[Any]:
        """Queue an operation behind the others."""
        handle: Handle[Any] = Handle(name)
        self._last = handle
        self._tasks.put((handle, task))
        return handle

    def close(self) -> None:
        """Finish the queued operations, and end the thread."""
        self._tasks.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        self._on_start()
        while (item := self._tasks.get()) is not None:
            handle, task = item
            try:
                result = task()
            except BaseException as error:  # it belongs to whoever waits for the handle
                handle.finish(error=error)
            else:
                handle.finish(result)
            # Nothing of an ended operation, tensors least of all, is kept until the next one.
            del item, handle, task


T = TypeVar("T")


@dataclass(slots=True)
class Prepared(Generic[T]):
    """An operation whose arguments have been checked: what ranks must agree on, and what is to be done."""

    call: Call
    work: Callable[[Turn], T]
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
        self.rank = rank
        self.abort_state = abort_state
        self.history = history
        self.timeline = timeline
        self.timeout = timeout
        self.name = name
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

    def run(self, prepared: Prepared[T]) -> T:
        """Run an operation, behind those that are still under way, and return its result."""
        handle: Handle[T] | None = None
        with self._lock:
            self.check()
            self._inside = threading.get_ident()
            try:
                if self._thread is None or self._thread.idle:
                    with _Run(self, prepared.call, next(self._numbers), spin=True) as operation:
                        result: Any = prepared.work(operation)
                        if prepared.launches:  # the ranks of the next one meet when the GPU has done this one
                            result.wait()
                else:
                    handle = self._submit(prepared, blocking=True)
            finally:
                self._inside = 0
        if handle is not None:
            return handle.wait()
        return result.wait() if prepared.launches else result  # type: ignore[no-any-return]

    def submit(self, prepared: Prepared[T]) -> Handle[T]:
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
            raise nested_use_error()

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
        self.abort_state.check()

    def _submit(self, prepared: Prepared[T], *, blocking: bool = False) -> Handle[T]:
        sequence = next(self._numbers)
        if self._thread is None:
            name, timeline = self.name, self.timeline
            self._thread = QueueThread(f"hpsearch-comm-queue-{self.rank}", lambda: timeline.queue_thread(name))
        queued = time.monotonic_ns() if self.timeline.on and not blocking else 0
        title = f"{prepared.call.operation} {sequence}"
        handle = self._thread.submit(title, lambda: self._run(prepared, sequence, queued))
        return LaunchHandle(handle) if prepared.launches else handle

    def _run(self, prepared: Prepared[T], sequence: int, queued: int) -> T:
        with _Run(self, prepared.call, sequence, queued=queued) as operation:
            result: Any = prepared.work(operation)
            if prepared.launches and self.timeline.on:  # its time is to be recorded
                result.wait()
        return result  # type: ignore[no-any-return]


class _Run:
    """The time in which an operation runs: an error of it ends the group. A context, not to be a frame of its own.

    Args:
        queue: The group's.
        call: What runs.
        sequence: The operation's number.
        spin: Whether its waits may hold a core, as in the caller's thread.
        queued: When it was queued, in nanoseconds of `time.monotonic_ns`; 0 for one that wasn't.
    """

    __slots__ = ("_call", "_operation", "_queue", "_queued", "_sequence", "_spin", "_stack")

    def __init__(self, queue: WorkQueue, call: Call, sequence: int, *, spin: bool = False, queued: int = 0) -> None:
        self._queue = queue
        self._call = call
        self._sequence = sequence
        self._spin = spin
        self._queued = queued
        self._stack: contextlib.ExitStack | None = None

    def __enter__(self) -> Turn:
        queue, call, sequence = self._queue, self._call, self._sequence
        # What this one waited behind may have ended the group. It must send and write nothing then: a peer that is
        # still in the torn operation might take it for the rest of that.
        if queue.abort_state.error is not None:
            queue.abort_state.check()
        queue.last_algorithm = call.algorithm
        packed = call.packed(sequence)
        operation = self._operation = Turn(
            queue.rank,
            packed,
            queue.timeout,
            queue.abort_state,
            spin=self._spin,
            phase=queue.timeline.phase,
        )
        operation.call = call
        if queue.timeline.on or torch.is_inference_mode_enabled():
            self._stack = self._context()
        queue.history.begin(sequence, packed)
        return operation

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        queue = self._queue
        queue.history.running = None
        if self._stack is not None:
            self._stack.__exit__(kind, error, trace)
        if isinstance(error, CommError):
            queue.abort_state.fail(error)
        elif error is not None:
            queue.abort_state.break_off(queue.rank, error)
        elif self._operation.complaint is not None:
            raise self._operation.complaint

    def _context(self) -> contextlib.ExitStack:
        queue, call = self._queue, self._call
        stack = contextlib.ExitStack()
        if torch.is_inference_mode_enabled():  # what is made in it couldn't be changed by operations outside of it
            stack.enter_context(torch.inference_mode(False))
        if queue.timeline.on:
            fields = call.operation, call.nbytes, call.algorithm
            stack.enter_context(queue.timeline.operation(*fields, self._sequence, self._queued, queue.name))
        return stack


def nested_use_error() -> UsageError:
    """Return the error of a call that interrupts another one of its own thread."""
    return UsageError(
        "a group can't be used or closed within one of its own operations, as a signal handler does that calls it: "
        "raise an exception there, such as SystemExit, which ends the operation on every rank"
    )
