"""The work queue: it runs a group's operations one at a time, in the caller's thread or in a background thread."""

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

from hpsearch_comm.collectives.reduction import Reduction
from hpsearch_comm.errors import GroupClosedError, UsageError
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.history import History
from hpsearch_comm.operations.arguments import Call
from hpsearch_comm.operations.work import Handle, UnderWay
from hpsearch_comm.timeline import NoTimeline, Timeline

T = TypeVar("T")


class Turn(Operation):
    """A running operation of a group, as a context manager. It is recorded, and an error in it ends the group.

    Args:
        queue: The group's queue.
        call: The description of the call.
        sequence: The operation's number.
        spin: Whether its waits may hold a core, as in the caller's thread.
        queued: When the operation was queued, in nanoseconds of `time.monotonic_ns`; 0 if it wasn't queued.

    Attributes:
        call: The description of the call.
        stream: The caller's CUDA stream, for tensors on a GPU. The current stream of the queue's thread is another one.
        ready: Event recorded on this stream at the call.
        under_way: The operation on the GPU, once it was launched; None if there is none.
    """

    __slots__ = ("_context", "_history", "call")

    stream: Any = None
    ready: Any = None
    under_way: UnderWay | None = None

    def __init__(self, queue: WorkQueue, call: Call, sequence: int, spin: bool, queued: int) -> None:
        # An earlier operation may have ended the group while this one was queued. Then it must not send anything: a
        # peer that is still in the broken operation might take it for a part of that operation.
        if queue.abort_state.error is not None:
            queue.abort_state.check()
        timeline, packed = queue.timeline, call.packed(sequence)
        # Not by the base's __init__, which takes time.
        self.rank, self.packed, self.timeout = queue.rank, packed, queue.timeout
        self.abort_state, self.spin, self.call = queue.abort_state, spin, call
        self._history = queue.history
        self._context: contextlib.ExitStack | None = None
        if timeline.on or torch.is_inference_mode_enabled():
            self._context = contextlib.ExitStack()
            # Tensors of inference mode can't be changed outside it.
            self._context.enter_context(torch.inference_mode(False))
            fields = call.operation, call.nbytes, call.algorithm
            self._context.enter_context(timeline.operation(*fields, sequence, queued, queue.name))
            self.phase = timeline.phase
        queue.last_algorithm = call.algorithm
        queue.history.begin(sequence, packed)

    def __enter__(self) -> Turn:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._history.running = None
        if self._context is not None:
            self._context.__exit__(kind, error, trace)
        if error is not None:
            self.abort_state.break_off(self.rank, error)
        elif self.complaint is not None:
            raise self.complaint

    @property
    def reduction(self) -> Reduction:
        """The reduction of the call, which must have one."""
        assert self.call.reduction is not None
        return self.call.reduction


@dataclass(slots=True)
class Prepared(Generic[T]):
    """An operation with checked arguments: the description of the call, and the function that runs it."""

    call: Call
    work: Callable[[Turn], T]
    launches: bool = False
    """Whether `work` may only launch the operation on a GPU, and return an `UnderWay` instead of the result."""


class WorkQueue:
    """Numbers the operations of a group, and runs them in order.

    Args:
        rank: This rank.
        abort_state: The group's abort state.
        history: Records the last operations.
        timeline: Records all operations.
        timeout: Seconds without progress after which an operation fails.
        name: The group's name, for the timeline.

    Attributes:
        last_algorithm: The algorithm of the operation that started last.
        closed: Whether the queue accepts no more operations.
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
        # Reentrant, so that a call from a signal handler raises an error instead of a deadlock.
        self._lock = threading.RLock()
        self._inside = 0  # ident of the thread that is in a call
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._tasks: queue.SimpleQueue[tuple[Handle[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._last: Handle[Any] | None = None
        self._process = os.getpid()
        self.closed = False

    @property
    def inherited(self) -> bool:
        """Whether this is the copy in a forked child, which can't use the group."""
        return self._process != os.getpid()

    def run(self, prepared: Prepared[T]) -> T:
        """Run an operation after those that are still running or queued, and return its result."""
        with self._lock:
            # Inlined from `check` for speed. With the lock, only a call within a call finds `_inside` set.
            if self.closed or self._inside or self.abort_state.error is not None or self._process != os.getpid():
                self.check()
            self._inside = threading.get_ident()
            try:
                if self._last is None or self._last.turn_ended:
                    with Turn(self, prepared.call, next(self._numbers), True, 0) as turn:
                        result: Any = prepared.work(turn)
                        if isinstance(result, UnderWay):  # the next operation starts when the GPU has finished this one
                            result = result.wait()
                    return result  # type: ignore[no-any-return]
                handle = self._submit(prepared, blocking=True)
            finally:
                self._inside = 0
        return handle.wait()

    def submit(self, prepared: Prepared[T]) -> Handle[T]:
        """Queue an operation for the background thread, and return its handle."""
        with self._lock:
            self.check()
            self._inside = threading.get_ident()
            try:
                return self._submit(prepared)
            finally:
                self._inside = 0

    def close(self) -> None:
        """Finish the submitted operations, and accept no more."""
        if self.inherited:
            self.closed = True
            return
        with self._lock:
            self.check_outside()
            self.closed = True
        if self._thread is not None:
            self._tasks.put(None)
            if threading.current_thread() is not self._thread:
                self._thread.join()

    def check_outside(self) -> None:
        """Raise UsageError if this thread is already in a call, as in a signal handler that interrupts one."""
        if self._inside and self._inside == threading.get_ident():
            raise nested_use_error()

    def check(self) -> None:
        """Check that an operation may be called.

        Raises:
            GroupClosedError: The group is closed.
            UsageError: This is a forked child, or this thread is already in an operation.
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
        queued = time.monotonic_ns() if self.timeline.on and not blocking else 0
        if self._thread is None:
            name = f"hpsearch-comm-queue-{self.rank}"
            self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
            self._thread.start()
        handle: Handle[Any] = Handle(f"{prepared.call.operation} {sequence}", prepared.launches)
        self._last = handle
        self._tasks.put((handle, lambda: self._execute(prepared, sequence, queued)))
        return handle

    def _serve(self) -> None:
        self.timeline.queue_thread(self.name)
        while (item := self._tasks.get()) is not None:
            handle, task = item
            try:
                result = task()
            except BaseException as error:  # the handle's `wait` raises it
                handle.finish(error=error)
            else:
                handle.finish(result)
                del result
            # Keep no references to the ended operation, above all not to its tensors.
            del item, handle, task

    def _execute(self, prepared: Prepared[T], sequence: int, queued: int) -> T:
        with Turn(self, prepared.call, sequence, False, queued) as turn:
            result: Any = prepared.work(turn)
            if isinstance(result, UnderWay) and self.timeline.on:  # the timeline records its duration
                result.wait()
        return result  # type: ignore[no-any-return]


def nested_use_error() -> UsageError:
    """Return the error for a call that interrupts another call in the same thread."""
    return UsageError(
        "a group can't be used or closed within one of its own operations, as a signal handler does that calls it: "
        "raise an exception there, such as SystemExit, which ends the operation on every rank"
    )
