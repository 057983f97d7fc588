"""The streams of CUDA tensors, as torch has it: whose `wait` has returned may use the results on its current stream.

A group's operation begins behind what its caller's current stream had been given, and the host waits for its end. Only
two things are still under way then: what copies results into the tensors that torch has passed, and, in a group of one,
the operation itself. Both go on the caller's stream, which the results are lent to, and whoever waits lets its own
current stream wait for that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence

import torch

from hpsearch_comm.cuda.stream import CudaStream, Event
from hpsearch_comm.group import Group


class CallersStreams:
    """The current streams of a thread that calls an operation, one of each device that its tensors lie on.

    Args:
        streams: Of different devices.
        alone: Whether the operation is done on them, and not only what comes behind it.
    """

    def __init__(self, streams: Sequence[CudaStream], alone: bool) -> None:
        self._streams = list(streams)
        self._alone = alone
        self._events: list[Event] = []

    @classmethod
    def of(cls, group: Group, tensors: Iterable[torch.Tensor]) -> CallersStreams | None:
        """Take those of the calling thread; None where all tensors are on the CPU.

        Raises:
            UsageError: A tensor is on another device than a CUDA device, or a CUDA graph is being captured.
        """
        streams = {stream.device: stream for stream in map(group.stream_of, tensors) if stream is not None}
        return cls(list(streams.values()), group.size == 1) if streams else None

    @classmethod
    def together(cls, parts: Iterable[CallersStreams | None]) -> CallersStreams | None:
        """Return those of several operations, which are waited for within `finish`."""
        streams = {stream.device: stream for part in parts if part is not None for stream in part._streams}
        return cls(list(streams.values()), False) if streams else None

    def here(self) -> list[CudaStream]:
        """Return the calling thread's current streams of the same devices.

        Raises:
            UsageError: A CUDA graph is being captured.
        """
        return [stream.current(stream.device) for stream in self._streams]

    def scope(self) -> contextlib.ExitStack:
        """Make them the current streams within a `with`.

        Raises:
            UsageError: A CUDA graph is being captured on one of them, of which what is queued now isn't to be a part.
        """
        with contextlib.ExitStack() as within:
            for stream in self._streams:
                within.enter_context(stream.scope())
                stream.current(stream.device)  # which looks for a capture
            return within.pop_all()

    def finish(self, step: Callable[[], object] | None) -> None:
        """Do what comes behind the operation, which has ended for the host."""
        if step is not None:
            with self.scope():
                step()
        if step is not None or self._alone:
            self.mark()

    def mark(self) -> None:
        """Note that the results are there where the streams have come to by now."""
        self._events = [stream.record() for stream in self._streams]

    def reached(self) -> bool:
        """Return whether the GPUs have come there."""
        return all(event.query() for event in self._events)

    def lead(self, streams: Iterable[CudaStream]) -> None:
        """Make other streams wait for the results, on the GPU."""
        for stream in streams:
            for event in self._events:
                stream.follow(event)

    @property
    def devices(self) -> list[torch.device]:
        """Return the devices that they are streams of."""
        return [stream.device for stream in self._streams]
