"""torch's `Work` for an operation: when `wait` returns, the results are in their tensors."""

from __future__ import annotations

import contextlib
import copy
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from hpsearch_comm.cuda.stream import CudaStream, Event
from hpsearch_comm.errors import CommError, CommTimeoutError
from hpsearch_comm.group import Group
from hpsearch_comm.operations.work import Handle, ReceiveHandle

_Future = torch.futures.Future[list[torch.Tensor]]

Finish = Callable[[list[Any]], object]
"""A function that copies the results of operations into torch's tensors."""

_MOST_THREADS = 64
_callers = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="hpsearch-comm-futures")
"""Threads that complete futures and run their callbacks, except those of `CommFuture`. Callbacks may wait for
operations, so they can't run in the thread that executes operations. A thread is added only if all others are busy."""


@contextlib.contextmanager
def as_torchs() -> Iterator[None]:
    """Convert this package's errors to torch's `DistBackendError`, with the original error as the cause."""
    try:
        yield
    except CommError as error:
        raise dist.DistBackendError(f"{type(error).__name__}: {error}") from error


class CallersStreams:
    """The current CUDA streams of a thread that calls an operation, one for each device of its tensors.

    As with torch, after `wait` the current stream of the thread can use results. A group's operation starts after the
    work that is queued on the caller's current stream, and the host waits for its end. Only two kinds of work may still
    be pending then: copies of results into torch's tensors, and, in a group of one rank, the operation itself. Both are
    queued on the caller's stream. `wait` makes the current stream of the waiting thread wait for them.

    Args:
        streams: The streams, each on a different device.
        alone: Whether the operation itself runs on these streams, as in a group of one rank.
    """

    def __init__(self, streams: Sequence[CudaStream], alone: bool) -> None:
        self._streams = list(streams)
        self._alone = alone
        self._events: list[Event] = []

    @classmethod
    def of(cls, group: Group, tensors: Iterable[torch.Tensor]) -> CallersStreams | None:
        """Return the calling thread's current streams on the tensors' devices; None if all tensors are on the CPU.

        Raises:
            UsageError: A tensor is on a device other than CPU and CUDA, or a CUDA graph is being captured.
        """
        streams = {stream.device: stream for stream in map(group.stream_of, tensors) if stream is not None}
        return cls(list(streams.values()), group.size == 1) if streams else None

    @classmethod
    def together(cls, parts: Iterable[CallersStreams | None]) -> CallersStreams | None:
        """Return the streams of several operations. The operations are waited for within `finish`."""
        streams = {stream.device: stream for part in parts if part is not None for stream in part._streams}
        return cls(list(streams.values()), False) if streams else None

    def here(self) -> list[CudaStream]:
        """Return the calling thread's current streams of the same devices.

        Raises:
            UsageError: A CUDA graph is being captured.
        """
        return [stream.current(stream.device) for stream in self._streams]

    def scope(self) -> contextlib.ExitStack:
        """Return a context manager that makes these the current streams.

        Raises:
            UsageError: A CUDA graph is being captured on one of the streams; work queued now would become part of it.
        """
        with contextlib.ExitStack() as within:
            for stream in self._streams:
                within.enter_context(stream.scope())
                stream.current(stream.device)  # raises an error during a capture
            return within.pop_all()

    def finish(self, step: Callable[[], object] | None) -> None:
        """Run the step that follows the operation on these streams, after the host has waited for the operation."""
        if step is not None:
            with self.scope():
                step()
        if step is not None or self._alone:
            self.mark()

    def mark(self) -> None:
        """Record events after which the results are ready."""
        self._events = [stream.record() for stream in self._streams]

    def reached(self) -> bool:
        """Return whether the GPUs have reached the events of `mark`."""
        return all(event.query() for event in self._events)

    def lead(self, streams: Iterable[CudaStream]) -> None:
        """Make other streams wait for the results, on the GPU."""
        for stream in streams:
            for event in self._events:
                stream.follow(event)

    @property
    def devices(self) -> list[torch.device]:
        """The streams' devices."""
        return [stream.device for stream in self._streams]


class CommFuture(_Future):
    """A future of the results of collectives.

    A callback runs in the thread that adds it, which first waits for the operations. So collectives that callbacks call
    run in program order, the same on every rank, as with NCCL. If callbacks ran in separate threads, the order could
    differ between ranks, and one rank's collective would be matched with a different one on another rank.

    Args:
        handles: The operations.
        devices: The results' CUDA devices; empty for results on the CPU.
    """

    def __init__(self, handles: Sequence[Handle[Any]], devices: Sequence[torch.device]) -> None:
        super().__init__(devices=list(devices))
        self._handles = handles

    def then(self, callback: Callable[[Any], Any]) -> torch.futures.Future[Any]:
        """Call a function with this future when it is completed; return a future of the function's result."""
        self._await()
        return super().then(callback)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call a function with this future when it is completed."""
        self._await()
        super().add_done_callback(callback)

    def _await(self) -> None:
        """Wait until the future is completed, with results or an error."""
        with contextlib.suppress(Exception):  # the callback can read the error from the future
            for handle in self._handles:
                handle.wait()  # unlike self.wait(), this can be interrupted
            self.wait()


class CommWork(dist.Work):
    """One or more operations as one `Work` of torch.

    Args:
        handles: The operations; empty if all have ended.
        tensors: The results for torch's futures.
        finish: A function that is called once with the handles' results, before the work counts as completed.
        streams: The calling thread's streams, if some tensors are on CUDA devices.
        ordered: Whether the operations are collectives, whose future is a `CommFuture`. For a point-to-point message,
            adding a callback must not block: the other rank may be waiting for a later message of this one.
        limit: A timeout in seconds, and a function that is called with the error when it expires.
    """

    def __init__(
        self,
        handles: Sequence[Handle[Any]],
        tensors: Sequence[torch.Tensor],
        finish: Finish | None = None,
        streams: CallersStreams | None = None,
        *,
        ordered: bool = True,
        limit: tuple[float, Callable[[CommError], object]] | None = None,
    ) -> None:
        super().__init__()
        self._limit = limit
        self._ordered = ordered
        self._streams = streams
        self._handles = list(handles)
        self._tensors = list(tensors)
        self._finish = finish
        self._ended = not self._handles
        self._error: CommError | None = None
        self._lock = threading.Lock()
        self._under_way = len(self._handles)
        self._future: _Future | None = None
        if streams is not None and self._ended:
            streams.mark()

    @classmethod
    def joined(cls, works: Sequence[CommWork]) -> CommWork:
        """Return one work for several."""
        handles = [handle for work in works for handle in work._handles]
        tensors = [tensor for work in works for tensor in work._tensors]
        streams = CallersStreams.together(work._streams for work in works)
        ordered = all(work._ordered for work in works)
        return cls(handles, tensors, lambda _: [work.wait() for work in works], streams=streams, ordered=ordered)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until the results are in their tensors, for later work on this thread's current streams.

        Args:
            timeout: Time after which an error is raised; the operation continues. 0 means the group's timeout.

        Raises:
            DistBackendError: The operation failed, or the timeout expired.
        """
        with as_torchs():
            if self._streams is None:
                self._end(timeout.total_seconds())
            else:
                here = self._streams.here()
                self._end(timeout.total_seconds())
                self._streams.lead(here)
        return True

    def synchronize(self) -> None:
        """Call `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether the work has ended, with results or an error."""
        if not all(handle.done() for handle in self._handles):
            return False
        self._complete(None)
        return self._streams is None or self._streams.reached()

    def is_success(self) -> bool:
        """Return whether the work has ended without an error."""
        return self.is_completed() and self._error is None

    def exception(self) -> CommError | None:
        """Return the error that ended the work; None if there is none, or if the work hasn't ended."""
        return self._error if self.is_completed() else None

    def result(self) -> list[torch.Tensor]:
        """Wait for the results, and return them."""
        self.wait()
        return self._tensors

    def source_rank(self) -> int:
        """Return the sender of a received message, as its rank in the group."""
        self.wait()
        receives = [handle for handle in self._handles if isinstance(handle, ReceiveHandle)]
        if not receives or receives[-1].source is None:
            raise dist.DistBackendError("only the work of a receive has a source rank")
        return receives[-1].source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future of the results: a `CommFuture` for collectives; otherwise callbacks run in another thread."""
        with self._lock:
            future, new = self._future, self._future is None
            if future is None:
                devices: list[Any] = [] if self._streams is None else self._streams.devices
                future = CommFuture(self._handles, devices) if self._ordered else torch.futures.Future(devices=devices)
                self._future = future
        if new and self._handles:
            for handle in self._handles:
                handle.add_turn_callback(self._count_down)
        elif new:
            self._complete_future()
        return future

    def _count_down(self) -> None:
        """Complete the future in a thread after the last operation. The thread may have to wait for GPUs."""
        with self._lock:
            self._under_way -= 1
            last = self._under_way == 0
        if last:
            try:
                _callers.submit(self._complete_future)
            except RuntimeError:  # the interpreter is shutting down
                self._complete_future()

    def _complete_future(self) -> None:
        assert self._future is not None
        try:
            with as_torchs():
                self._end(0.0)
                current = contextlib.nullcontext() if self._streams is None else self._streams.scope()
            with current:
                self._future.set_result(self._tensors)  # ready at this point of the current streams
        except Exception as error:
            if self._future.done():  # the error is a callback's
                raise
            self._future.set_exception(error)  # type: ignore[arg-type]

    def _end(self, timeout: float) -> None:
        """Wait for the operations, and raise their error if they failed; timeout 0 means the group's timeout."""
        if self._limit is None or timeout:
            self._complete(timeout or None)
        else:
            self._complete_within(*self._limit)
        if self._error is not None:
            raise copy.copy(self._error).with_traceback(None)

    def _complete_within(self, seconds: float, expired: Callable[[CommError], object]) -> None:
        try:
            self._complete(seconds)
        except CommTimeoutError:
            names = " and ".join(handle.name for handle in self._handles)
            error = CommTimeoutError(f"not every rank has come to {names} within its own timeout of {seconds:g} s", -1)
            expired(error)
            raise error from None

    def _complete(self, seconds: float | None) -> None:
        """Wait for the operations, and finish them: the first thread that gets here copies the results.

        Raises:
            CommTimeoutError: The operations haven't ended after `seconds`.
        """
        if self._ended:
            return
        until = math.inf if seconds is None else time.monotonic() + seconds
        values, error = [], None
        for handle in self._handles:
            try:
                values.append(handle.wait(max(0.0, until - time.monotonic())))
            except CommError as reason:
                if not handle.done():
                    raise
                error = reason
                break
        with self._lock:
            if self._ended:
                return
            try:
                if error is None:
                    self._put(values)
            except CommError as reason:
                error = reason
            self._error = error
            self._finish = None
            self._ended = True

    def _put(self, values: list[Any]) -> None:
        """Copy the results into torch's tensors."""
        step = None if self._finish is None else partial(self._finish, values)
        if self._streams is not None:
            self._streams.finish(step)
        elif step is not None:
            step()
