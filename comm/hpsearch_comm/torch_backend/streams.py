"""CUDA streams of operations, with torch's semantics: after `wait`, the current stream of the thread can use results.

A group's operation starts after the work that is queued on the caller's current stream, and the host waits for its end.
Only two kinds of work may still be pending then: copies of results into torch's tensors, and, in a group of one rank,
the operation itself. Both are queued on the caller's stream. `wait` makes the current stream of the waiting thread wait
for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence

import torch

from hpsearch_comm.cuda.stream import CudaStream, Event
from hpsearch_comm.group import Group


class CallersStreams:
    """The current streams of a thread that calls an operation, one for each device of its tensors.

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
