"""CUDA streams, and two ways to wait for the GPU: on another stream, and on the host.

A collective runs on a separate stream, which first waits for the work that the caller has queued so far. So ranks that
are threads of one process don't wait for each other on a shared stream, and the collective overlaps with the backward
pass.
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
        """Return whether the GPU has reached this point, without waiting."""


class CudaStream:
    """A stream of a CUDA device.

    Args:
        stream: torch's stream.

    Attributes:
        device: The stream's device.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.device: torch.device = stream.device

    @classmethod
    def beside(cls, device: torch.device) -> CudaStream:
        """Return a new stream on a device, for work in parallel with the callers' streams.

        Args:
            device: The device with its index, such as `torch.device("cuda", 0)`.
        """
        # High priority: peers wait for these kernels, but only this rank waits for its other kernels.
        return cls(torch.cuda.Stream(device, priority=-1))  # type: ignore[no-untyped-call]

    @classmethod
    def current(cls, device: torch.device) -> CudaStream:
        """Return the stream that the calling thread computes on.

        Raises:
            UsageError: Collectives don't support tensors on this device, or a CUDA graph is being captured.
        """
        if device.type != "cuda":
            raise UsageError(
                f"collectives take tensors on the CPU or on a CUDA device, got one on {device}: move it with "
                "tensor.cpu(), and the result back with tensor.to(device)"
            )
        if torch.cuda.is_current_stream_capturing():
            raise UsageError(
                "a collective can't be part of a CUDA graph, since the host waits for it and meets the other ranks: "
                "capture the work before and behind it, and call it between the two"
            )
        return cls(torch.cuda.current_stream(device))

    def scope(self) -> AbstractContextManager[Any]:
        """Make this the current stream, and its device the current device, within a `with`."""
        return cast(AbstractContextManager[Any], torch.cuda.stream(self._stream))

    def record(self) -> Event:
        """Record an event at the current end of this stream."""
        return cast(Event, self._stream.record_event())

    def follow(self, event: Event) -> None:
        """Make work that is queued on this stream from now on wait for the event, on the GPU."""
        self._stream.wait_event(event)

    def keep(self, tensor: torch.Tensor) -> None:
        """Tell the allocator that this stream uses the tensor, so that its memory isn't reused too early."""
        tensor.record_stream(self._stream)


def wait_until(is_done: Callable[[], bool], check: Callable[[], object]) -> None:
    """Poll on the host until a condition is true. It never blocks in CUDA, where nothing could end the wait.

    At first it polls continuously and yields to other threads in between; then the interval grows to a millisecond.

    Args:
        is_done: The condition.
        check: Called before each poll except the first; it may raise an error to end the wait.
    """
    spun, pause = time.perf_counter() + SPIN_SECONDS, SHORTEST_SLEEP
    while not is_done():
        check()
        if time.perf_counter() < spun:
            time.sleep(0)
        else:
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_SLEEP)
