"""Requests: the description of an operation that the ranks must agree on; and entries: a rank's pending operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import torch

from hpsearch_comm.cuda.stream import CudaStream, Event
from hpsearch_comm.operations.work import Handle


class ReduceOp(IntEnum):
    """Reduction operators, with Horovod's values."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5

    def __str__(self) -> str:
        """Return the name as scripts write it, such as `Average`."""
        return self.name.capitalize()


@dataclass(frozen=True, slots=True)
class Request:
    """One operation, on one tensor or on several that are grouped."""

    name: str
    """The name by which the ranks match requests, such as `allreduce.conv1.weight`."""
    kind: str
    """allreduce, allgather, broadcast, alltoall, reducescatter, barrier, join, or adding or removing a process set."""
    tensors: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """dtype and shape of each tensor."""
    op: ReduceOp | None = None
    numbers: tuple[int, ...] = ()
    """The root of a broadcast, as its rank in the process set; the ranks of a process set to add or remove."""
    prescale_factor: float = 1.0
    postscale_factor: float = 1.0
    device: str = "cpu"
    """The tensors' device type: cpu or cuda."""

    def write(self) -> list[Any]:
        """Return the request as a list for JSON."""
        return [getattr(self, name) for name in self.__slots__]

    @classmethod
    def read(cls, written: Any) -> Request:
        """Return the request that `write` has written."""
        name, kind, tensors, op, numbers, *others = written
        shapes = tuple((dtype, tuple(shape)) for dtype, shape in tensors)
        return cls(name, kind, shapes, None if op is None else ReduceOp(op), tuple(numbers), *others)


@dataclass(slots=True, eq=False)
class Entry:
    """A pending operation of this rank: its request, its tensors and its handle."""

    request: Request
    sources: Sequence[torch.Tensor] = ()
    """The input tensors, detached from the autograd graph."""
    in_place: Sequence[torch.Tensor] | None = None
    """For an in-place operation, the caller's tensors, which share the memory of `sources`. None: results are new."""
    splits: torch.Tensor | None = None
    """For an alltoall, the number of rows for each rank."""
    grouped: bool = False
    """Whether the result is a tuple of tensors rather than one tensor."""
    ready: Event | None = None
    """For CUDA tensors, an event recorded on the caller's stream at the call."""
    carry: Callable[[Entry], None] | None = None
    """Executes an operation on the job rather than on tensors, and finishes the handle."""
    handle: Handle[Any] = field(init=False)
    _stream: CudaStream | None = field(default=None, init=False)
    _finished: Event | None = field(default=None, init=False)
    _results: Sequence[torch.Tensor] = field(default=(), init=False)

    def __post_init__(self) -> None:
        self.handle = Handle(self.request.name)

    def begin(self, stream: CudaStream | None) -> None:
        """Make the operation's stream wait for the input tensors; None for the CPU."""
        self._stream = stream
        if stream is not None:
            if self.ready is not None:
                stream.follow(self.ready)
            for source in self.sources:
                stream.keep(source)

    def finish(self, results: Sequence[torch.Tensor], value: Any = None) -> None:
        """Finish the handle with the results. For an in-place operation, they are the caller's tensors.

        Args:
            results: The result tensors.
            value: The value that the caller receives instead of the tensors.
        """
        results = self._results = results if self.in_place is None else self.in_place
        if self._stream is not None:
            self._finished = self._stream.record()
        self.handle.finish(value or (tuple(results) if self.grouped else results[0]))

    def lend(self, stream: CudaStream | None) -> None:
        """Make a stream wait for the results on the GPU, and mark their memory as used by the stream."""
        if stream is not None and self._finished is not None:
            stream.follow(self._finished)
            for result in self._results:
                stream.keep(result)
