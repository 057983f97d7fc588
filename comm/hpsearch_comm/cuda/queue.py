"""A stream of a GPU for collectives, and the two ways to wait: for the GPU in the GPU, and for the GPU on the host.

A collective doesn't run on the stream that the caller computes on, but on one of its own, which first waits for what
the caller has queued so far. So ranks that are threads of one process don't wait for each other on a stream that they
share, and the backward pass goes on beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, cast

import torch

from hpsearch_comm.errors import UsageError

__all__ = ["Caller", "CudaCaller", "CudaQueue", "Event", "Queue", "check_capture", "wait_until"]

SPIN_SECONDS = 200e-6
SHORTEST_SLEEP = 20e-6
LONGEST_SLEEP = 1e-3


class Event(Protocol):
    """A point in a stream."""

    def query(self) -> bool:
        """Say whether the GPU has reached it. Never waits."""


class Queue(Protocol):
    """What collectives need of a stream. `CudaQueue` is the real one."""

    @property
    def handle(self) -> int:
        """The `cudaStream_t`."""

    def mark(self) -> Event:
        """Mark the point that the caller's current stream has come to."""

    def follow(self, event: Event) -> None:
        """Let what is queued here from now on wait for the event, in the GPU."""

    def scope(self) -> AbstractContextManager[Any]:
        """Make this the current stream, and its device the current device, within a `with`."""

    def record(self) -> Event:
        """Mark the point that this stream has come to."""

    def release(self, event: Event) -> None:
        """Let what the caller's current stream is given from now on wait for the event, in the GPU."""

    def keep(self, tensor: torch.Tensor) -> None:
        """Tell the allocator that this stream uses the tensor, so that its memory isn't reused too early."""


class Caller(Protocol):
    """The stream on which the caller of a collective computes, which another thread's current stream isn't."""

    @property
    def ready(self) -> Event:
        """The point that the stream had come to at the call."""

    def scope(self) -> AbstractContextManager[Any]:
        """Make it the current stream of this thread within a `with`."""

    def lend(self, tensor: torch.Tensor) -> None:
        """Tell the allocator that it will use a tensor which was made on another stream."""


class CudaCaller:
    """The current stream of the thread that makes it.

    Args:
        device: Such as `torch.device("cuda", 0)`; with its number.

    Raises:
        UsageError: A CUDA graph is being captured.
    """

    __slots__ = ("_stream", "ready")

    def __init__(self, device: torch.device) -> None:
        check_capture()
        self._stream: Any = torch.cuda.current_stream(device)
        self.ready = _recorded(self._stream)

    def scope(self) -> AbstractContextManager[Any]:
        """See `Caller`."""
        return cast(AbstractContextManager[Any], torch.cuda.stream(self._stream))

    def lend(self, tensor: torch.Tensor) -> None:
        """See `Caller`."""
        tensor.record_stream(self._stream)


class CudaQueue:
    """A stream of a CUDA device, beside the others.

    Args:
        device: Such as `torch.device("cuda", 0)`; with its number.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # Kernels that peers wait for go before those that only this rank waits for.
        self._stream: Any = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self.handle = int(self._stream.cuda_stream)

    def mark(self) -> Event:
        """See `Queue`."""
        return _recorded(torch.cuda.current_stream(self._device))

    def follow(self, event: Event) -> None:
        """See `Queue`."""
        self._stream.wait_event(event)

    def scope(self) -> AbstractContextManager[Any]:
        """See `Queue`."""
        return cast(AbstractContextManager[Any], torch.cuda.stream(self._stream))

    def record(self) -> Event:
        """See `Queue`."""
        return _recorded(self._stream)

    def release(self, event: Event) -> None:
        """See `Queue`."""
        torch.cuda.current_stream(self._device).wait_event(cast(torch.cuda.Event, event))

    def keep(self, tensor: torch.Tensor) -> None:
        """See `Queue`."""
        tensor.record_stream(self._stream)


def _recorded(stream: Any) -> Event:
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(stream)
    return cast(Event, event)


def check_capture() -> None:
    """Raise UsageError while a CUDA graph is being captured: no event of it can be waited for on the host."""
    if torch.cuda.is_current_stream_capturing():
        raise UsageError(
            "a collective can't be part of a CUDA graph, since the host waits for it and meets the other ranks: "
            "capture the work before and behind it, and call it between the two"
        )


def wait_until(done: Callable[[], bool], check: Callable[[], object]) -> None:
    """Wait on the host, without ever being stuck in CUDA, where nothing could end the wait.

    It looks all the time at first, giving way to other threads in between, and then ever more seldom, up to a thousand
    times a second.

    Args:
        done: Whether the wait is over.
        check: Called before each look but the first; it may raise.
    """
    if done():
        return
    spun = time.perf_counter() + SPIN_SECONDS
    pause = SHORTEST_SLEEP
    while True:
        check()
        if time.perf_counter() < spun:
            time.sleep(0)
        else:
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_SLEEP)
        if done():
            return
