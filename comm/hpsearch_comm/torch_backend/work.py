"""What torch gets for an operation: a `Work`, whose results lie in their tensors when `wait` returns."""

from __future__ import annotations

import contextlib
import copy
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from hpsearch_comm.errors import CommError, CommTimeoutError
from hpsearch_comm.operations.work import Handle, ReceiveHandle
from hpsearch_comm.torch_backend.streams import CallersStreams

_Future = torch.futures.Future[list[torch.Tensor]]

Finish = Callable[[list[Any]], object]
"""Puts the results of operations where they belong."""

_MOST_THREADS = 64
_callers = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="hpsearch-comm-futures")
"""Threads that complete futures, and so run what hangs on them, but for what `CommFuture` runs. That may wait for
operations, which the thread that carries them out can't; one more thread begins only where all others are in such a
wait."""


@contextlib.contextmanager
def as_torchs() -> Iterator[None]:
    """Raise our errors as torch's, with ours as the cause."""
    try:
        yield
    except CommError as error:
        raise dist.DistBackendError(f"{type(error).__name__}: {error}") from error


class CommFuture(_Future):
    """The results of collectives.

    What is hung on it runs at once, in the thread that hangs it on, which waits for the operations. So the collectives
    that it calls come in the order of the program, the same on every rank, as with NCCL. In threads of their own those
    of two futures would cross, and what is summed up on one rank would be something else on another.

    Args:
        handles: The operations.
        devices: Where the results lie, if they are on CUDA devices.
    """

    def __init__(self, handles: Sequence[Handle[Any]], devices: Sequence[torch.device]) -> None:
        super().__init__(devices=list(devices))
        self._handles = handles

    def then(self, callback: Callable[[Any], Any]) -> torch.futures.Future[Any]:
        """Call a function with this future when it is completed; return a future of what that returns."""
        self._await()
        return super().then(callback)

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call a function with this future when it is completed."""
        self._await()
        super().add_done_callback(callback)

    def _await(self) -> None:
        """Wait until it is completed, well or not."""
        with contextlib.suppress(Exception):  # which the function finds in it
            for handle in self._handles:
                handle.wait()  # which can be interrupted
            self.wait()


class CommWork(dist.Work):
    """Operations under way, which torch takes for one.

    Args:
        handles: The operations; none where all has been done.
        tensors: The results, as torch gives them in futures.
        finish: Called once with the handles' results, before anybody learns of the end.
        limit: Seconds for which to wait, and what is called with the error when they are over.
        streams: Of the thread that has called the operations, where some of the tensors are on CUDA devices.
        ordered: Whether they are collectives. What hangs on the future of a message mustn't wait for it where it is
            hung on: the other rank may wait for this one's.
    """

    def __init__(
        self,
        handles: Sequence[Handle[Any]],
        tensors: Sequence[torch.Tensor],
        finish: Finish | None = None,
        limit: tuple[float, Callable[[CommError], object]] | None = None,
        streams: CallersStreams | None = None,
        *,
        ordered: bool = True,
    ) -> None:
        super().__init__()
        self._ordered = ordered
        self._streams = streams
        self._limit = limit
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
        """Return one work of several."""
        handles = [handle for work in works for handle in work._handles]
        tensors = [tensor for work in works for tensor in work._tensors]
        streams = CallersStreams.together(work._streams for work in works)
        ordered = all(work._ordered for work in works)
        return cls(handles, tensors, lambda _: [work.wait() for work in works], streams=streams, ordered=ordered)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Return when the results lie in their tensors, for what this thread's current stream does next.

        Args:
            timeout: After which to raise; the operation goes on. 0 waits as long as the group's own.

        Raises:
            DistBackendError: What has ended the operation.
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
        """Do as `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether it has ended, well or not."""
        if not all(handle.done() for handle in self._handles):
            return False
        self._complete(None)
        return self._streams is None or self._streams.reached()

    def is_success(self) -> bool:
        """Return whether it has ended well."""
        return self.is_completed() and self._error is None

    def exception(self) -> CommError | None:
        """Return what has ended it."""
        return self._error if self.is_completed() else None

    def result(self) -> list[torch.Tensor]:
        """Wait for the results, and return them."""
        self.wait()
        return self._tensors

    def source_rank(self) -> int:
        """Return the rank in the group from which a message came."""
        self.wait()
        receives = [handle for handle in self._handles if isinstance(handle, ReceiveHandle)]
        if not receives or receives[-1].source is None:
            raise dist.DistBackendError("only the work of a receive has a source rank")
        return receives[-1].source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future of the results: of collectives a `CommFuture`; others' callbacks run in a thread."""
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
        """Have a thread complete the future after the last operation; it waits for GPUs that still run one."""
        with self._lock:
            self._under_way -= 1
            last = self._under_way == 0
        if last:
            try:
                _callers.submit(self._complete_future)
            except RuntimeError:  # the interpreter ends, and takes no more of them
                self._complete_future()

    def _complete_future(self) -> None:
        assert self._future is not None
        try:
            with as_torchs():
                self._end(0.0)
                current = contextlib.nullcontext() if self._streams is None else self._streams.scope()
            with current:
                self._future.set_result(self._tensors)  # which is there where the current streams have come to
        except Exception as error:
            if self._future.done():  # and what hangs on it has failed
                raise
            self._future.set_exception(error)  # type: ignore[arg-type]

    def _end(self, timeout: float) -> None:
        """Wait for the operations, and raise what has ended them; 0 waits as long as the group's own timeout."""
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
        """Wait for the operations, and put their results where they belong; the first one who comes does that.

        Raises:
            CommTimeoutError: They are under way after so many seconds.
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
        """Put the results where they belong."""
        step = None if self._finish is None else partial(self._finish, values)
        if self._streams is not None:
            self._streams.finish(step)
        elif step is not None:
            step()
