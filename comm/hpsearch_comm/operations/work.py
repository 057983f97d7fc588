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

    result: Any
    """The result for the caller. It must be set before anybody waits, and not be used before `wait` returns."""

    # No abstract base class, for which `isinstance` takes ten times as long.
    def done(self) -> bool:
        """Return whether the operation has ended, successfully or not."""
        return True

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until the operation has ended, and return its result. It may be called several times."""
        return self.result


class Handle(Generic[T]):
    """An operation that is queued or runs in the background.

    Args:
        name: Name of the operation, for messages.
        launches: Whether the queue only launches it on a GPU, and finishes the handle with an `UnderWay`.

    Attributes:
        name: See above.
        turn_ended: Whether the queue has finished the operation, or launched it.
    """

    __slots__ = ("_callbacks", "_error", "_finished", "_launches", "_result", "name", "turn_ended")

    def __init__(self, name: str, launches: bool = False) -> None:
        self.name = name
        self._launches = launches
        # A lock that is held until the operation has ended is the cheapest object to wait for. It only wakes waiting
        # threads. An interrupted thread may leave it locked, so `turn_ended` is a separate flag.
        self._finished = threading.Lock()
        self._finished.acquire()
        self.turn_ended = False
        self._result: Any = None
        self._error: BaseException | None = None
        self._callbacks: deque[Callable[[], object]] = deque()

    def done(self) -> bool:
        """Return whether the operation has ended, successfully or not."""
        return self.turn_ended and (not isinstance(self._result, UnderWay) or self._result.done())

    def wait(self, timeout: float | None = None) -> T:
        """Wait for the operation's end and return its result.

        Args:
            timeout: Maximum seconds to wait. The operation itself continues afterwards.

        Raises:
            CommError: The error of the operation: PeerLost, CommTimeoutError, MismatchError, ...
            CommTimeoutError: The operation is still in progress after `timeout` seconds.
        """
        until = None if timeout is None else time.monotonic() + timeout
        if not self.turn_ended:
            try:
                # A lock takes -1 as no limit, and refuses numbers above TIMEOUT_MAX, such as infinity.
                self._finished.acquire(timeout=-1 if timeout is None else max(0.0, min(timeout, threading.TIMEOUT_MAX)))
            finally:
                if self.turn_ended:
                    self._wake_next()
        if not self.turn_ended:
            raise CommTimeoutError(f"{self.name} is still running after {timeout:g} s: wait again", -1)
        if self._error is not None:
            raise self._error
        result: T = self._result
        if isinstance(self._result, UnderWay):
            result = self._result.wait(None if until is None else max(0.0, until - time.monotonic()))
        return result

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Call a function when the operation has ended, or now if it has already ended.

        Args:
            callback: Runs in the thread that executes operations: it must not wait for an operation or raise.

        Raises:
            UsageError: The operation is on a GPU: no thread waits for its end.
        """
        if self._launches:
            raise UsageError("an operation on a CUDA tensor calls nobody back: wait for its handle")
        self.add_turn_callback(callback)

    def add_turn_callback(self, callback: Callable[[], object]) -> None:
        """Call a function when the operation has ended or a GPU has started it; otherwise like `add_done_callback`."""
        self._callbacks.append(callback)
        if self.turn_ended:
            self._call_back()

    def finish(self, result: T | UnderWay | None = None, error: BaseException | None = None) -> None:
        """Set the result or the error; called once, by the queue."""
        self._result = result
        self._error = error
        self.turn_ended = True
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
