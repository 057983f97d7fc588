"""Handles of asynchronous operations."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

from hpsearch_comm.errors import CommTimeoutError, UsageError

T = TypeVar("T")


class UnderWay:
    """An operation that was launched on a GPU. This base class is an operation that has already ended."""

    __slots__ = ("result",)

    result: Any
    """The result for the caller. It must be set before anybody waits, and not be used before `wait` returns."""

    def done(self) -> bool:
        """Return whether the operation has ended, successfully or not."""
        return True

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until the operation has ended, and return its result. It may be called several times."""
        return self.result


class Handle(Generic[T]):
    """An operation that is queued or runs in the background.

    Attributes:
        name: Name of the operation, for messages.
    """

    __slots__ = ("_callbacks", "_ended", "_error", "_finished", "_result", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        # A lock that is held until the operation has ended is the cheapest object to wait for. It only wakes waiting
        # threads. An interrupted thread may leave it locked, so `_ended` is a separate flag.
        self._finished = threading.Lock()
        self._finished.acquire()
        self._ended = False
        self._result: T | None = None
        self._error: BaseException | None = None
        self._callbacks: deque[Callable[[], object]] = deque()

    def done(self) -> bool:
        """Return whether the operation has ended, successfully or not."""
        return self._ended

    def wait(self, timeout: float | None = None) -> T:
        """Wait for the operation's end and return its result.

        Args:
            timeout: Maximum seconds to wait. The operation itself continues afterwards.

        Raises:
            CommError: The error of the operation: PeerLost, CommTimeoutError, MismatchError, ...
            CommTimeoutError: The operation is still in progress after `timeout` seconds.
        """
        if not self._ended:
            try:
                # A lock takes -1 as no limit, and refuses numbers above TIMEOUT_MAX, such as infinity.
                self._finished.acquire(timeout=-1 if timeout is None else max(0.0, min(timeout, threading.TIMEOUT_MAX)))
            finally:
                if self._ended:
                    self._wake_next()
        if not self._ended:
            raise CommTimeoutError(f"{self.name} is still running after {timeout:g} s: wait again", -1)
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Call a function when the operation has ended, or now if it has already ended.

        Args:
            callback: Runs in the thread that executes operations: it must not wait for an operation or raise.
        """
        self._callbacks.append(callback)
        if self._ended:
            self._call_back()

    def add_turn_callback(self, callback: Callable[[], object]) -> None:
        """Call a function when the operation has ended or a GPU has started it; otherwise like `add_done_callback`."""
        self.add_done_callback(callback)

    def finish(self, result: T | None = None, error: BaseException | None = None) -> None:
        """Set the result or the error; called once, by the queue."""
        self._result = result
        self._error = error
        self._ended = True
        self._wake_next()
        if self._callbacks:
            self._call_back()

    def _call_back(self) -> None:
        """Call each function once, also if several threads run this."""
        with contextlib.suppress(IndexError):
            while True:
                self._callbacks.popleft()()

    def _wake_next(self) -> None:
        """Wake one of the waiting threads; each wakes the next."""
        with contextlib.suppress(RuntimeError):  # another thread has already released it
            self._finished.release()


class ReceiveHandle(Handle[torch.Tensor]):
    """The handle of a receive.

    Attributes:
        source: The rank that sent the message; None until it has arrived.
    """

    __slots__ = ("source",)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.source: int | None = None


class LaunchHandle(Handle[T]):
    """The handle of an operation that the queue launches on a GPU. It ends when the GPU has finished.

    Args:
        launch: The handle of the launch, which runs in the queue.
    """

    __slots__ = ("_launch",)

    def __init__(self, launch: Handle[UnderWay]) -> None:
        super().__init__(launch.name)
        self._launch = launch

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Not supported, because no thread waits for the GPU.

        Raises:
            UsageError: Always.
        """
        raise UsageError("an operation on a CUDA tensor calls nobody back: wait for its handle")

    def add_turn_callback(self, callback: Callable[[], object]) -> None:
        """See `Handle.add_turn_callback`."""
        self._launch.add_done_callback(callback)

    def done(self) -> bool:
        """Return whether the operation has ended, successfully or not."""
        if not self._launch.done():
            return False
        under_way = self._launch._result
        return under_way is None or under_way.done()

    def wait(self, timeout: float | None = None) -> T:
        """Wait for the operation's end, and return its result; see `Handle.wait`."""
        until = None if timeout is None else time.monotonic() + timeout
        under_way = self._launch.wait(timeout)
        result: T = under_way.wait(None if until is None else max(0.0, until - time.monotonic()))
        return result
