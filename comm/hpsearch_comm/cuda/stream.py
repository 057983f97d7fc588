"""The streams of a GPU, and the two ways to wait: for the GPU in the GPU, and for the GPU on the host.

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

SPIN_SECONDS = 200e-6
SHORTEST_SLEEP = 20e-6
LONGEST_SLEEP = 1e-3


class Event(Protocol):
    """A point in a stream."""

    def query(self) -> bool:
        """Return whether the GPU has reached it. Never waits."""


class CudaStream:
    """A stream of a CUDA device.

    Args:
        stream: torch's.

    Attributes:
        device: Its device.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.device: torch.device = stream.device

    @classmethod
    def beside(cls, device: torch.device) -> CudaStream:
        """Return another stream of the device than those that callers compute on.

        Args:
            device: Such as `torch.device("cuda", 0)`; with its number.
        """
        # Kernels that peers wait for go before those that only this rank waits for.
        return cls(torch.cuda.Stream(device, priority=-1))  # type: ignore[no-untyped-call]

    @classmethod
    def current(cls, device: torch.device) -> CudaStream:
        """Return the stream that the calling thread computes on.

        Raises:
            UsageError: A CUDA graph is being captured.
        """
        check_capture()
        return cls(torch.cuda.current_stream(device))

    def scope(self) -> AbstractContextManager[Any]:
        """Make this the current stream, and its device the current device, within a `with`."""
        return cast(AbstractContextManager[Any], torch.cuda.stream(self._stream))

    def record(self) -> Event:
        """Mark the point that this stream has come to."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return cast(Event, event)

    def follow(self, event: Event) -> None:
        """Make work that is queued here from now on wait for the event, on the GPU."""
        self._stream.wait_event(event)

    def keep(self, tensor: torch.Tensor) -> None:
        """Tell the allocator that this stream uses the tensor, so that its memory isn't reused too early."""
        tensor.record_stream(self._stream)


def check_capture() -> None:
    """Raise UsageError while a CUDA graph is being captured: no event of it can be waited for on the host."""
    if torch.cuda.is_current_stream_capturing():
        raise UsageError(
            "a collective can't be part of a CUDA graph, since the host waits for it and meets the other ranks: "
            "capture the work before and behind it, and call it between the two"
        )


def wait_until(is_done: Callable[[], bool], check: Callable[[], object]) -> None:
    """Wait on the host, without ever being stuck in CUDA, where nothing could end the wait.

    It looks all the time at first, giving way to other threads in between, and then ever more seldom, up to a thousand
    times a second.

    Args:
        is_done: Whether the wait is over.
        check: Called before each look but the first; it may raise.
    """
    if is_done():
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
        if is_done():
            return
