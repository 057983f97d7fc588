"""The ways that a collective of CUDA tensors can take: through NCCL, through host memory, or nowhere in a group of one.

Every operation on every way is run in its turn, be it in the caller's thread or in the work queue's. So there is one
order of all operations, on the CPU and on GPUs, the same on every rank, and nothing can wait in a circle: the first
operation that isn't finished everywhere is one that every rank comes to, since what lies before it has ended, or is
with the GPUs, which need nothing more from the host. The caller's stream comes along.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any, Protocol

import torch

from hpsearch_comm.collectives.host_collectives import HostCollectives
from hpsearch_comm.collectives.reduction import Reduction
from hpsearch_comm.cuda.staging import HostStaging
from hpsearch_comm.cuda.stream import CudaStream, Event
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.operations.arguments import Call

__all__ = ["Alone", "Flight", "Part", "ThroughHost", "Turn", "Way", "parts_of"]

Part = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Turn:
    """An operation in its turn."""

    operation: Operation
    call: Call
    stream: CudaStream
    """On which the caller computes, which another thread's current stream isn't."""
    ready: Event
    """The point that the stream had come to at the call."""

    @property
    def reduction(self) -> Reduction:
        """Of a call that has one."""
        assert self.call.reduction is not None
        return self.call.reduction


class Flight:
    """An operation that has been given to the GPU; one of this very class has ended."""

    __slots__ = ("result",)

    result: Any
    """What the caller gets; it must be set before anybody waits, and not be used before `wait()`."""

    def done(self) -> bool:
        """Say whether it has ended, well or not."""
        return True

    def wait(self, _timeout: float | None = None) -> Any:
        """Wait for its end and give its result."""
        return self.result


class Way(Protocol):
    """Carries out collectives. Tensors lie on the device and have any layout; parts are runs of elements, by rank.

    Shapes, dtypes, devices and layouts of the tensors fit together: that has been checked with the call's arguments.
    """

    @property
    def stream(self) -> CudaStream | None:
        """On which results are to be made, to be lent to the caller's stream; None for the caller's own."""

    def allreduce(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor) -> Flight:
        """Reduce the ranks' tensors into everybody's `out`, which may be the tensor; the same bits on every rank."""

    def broadcast(self, turn: Turn, tensor: torch.Tensor, root: int) -> Flight:
        """Copy the root's tensor into everybody's."""

    def allgather(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, parts: Sequence[Part]) -> Flight:
        """Copy the ranks' tensors into everybody's `out`. The ranks have exchanged their sizes."""

    def reduce_scatter(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, parts: Sequence[Part]) -> Flight:
        """Reduce the ranks' tensors, and give each its part in `out`."""

    def alltoall(
        self, turn: Turn, rows: torch.Tensor, out: torch.Tensor, splits: Sequence[int], coming: Sequence[int]
    ) -> Flight:
        """Send some rows to each rank, and get some from each in `out`, which is contiguous.

        The ranks have exchanged the numbers.
        """


class ThroughHost:
    """Through pinned host memory and the collectives of CPU tensors, which compare signatures themselves.

    Args:
        staging: Copies down and up.
        host: Carries out what lies on the CPU.
    """

    def __init__(self, staging: HostStaging, host: HostCollectives) -> None:
        self.stream: CudaStream | None = staging.up
        self._staging = staging
        self._host = host

    def allreduce(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor) -> Flight:
        """See `Way`."""
        host, operation, algorithm, reduction = self._host, turn.operation, turn.call.algorithm, turn.reduction

        def collective(chunk: torch.Tensor) -> None:
            host.allreduce(operation, algorithm, chunk, reduction, chunk)

        self._staging.elementwise(tensor, out, collective, turn.ready)
        return Flight()

    def broadcast(self, turn: Turn, tensor: torch.Tensor, root: int) -> Flight:
        """See `Way`."""

        def collective(chunk: torch.Tensor) -> None:
            self._host.broadcast(turn.operation, turn.call.algorithm, chunk, root)

        self._staging.elementwise(tensor, tensor, collective, turn.ready)
        return Flight()

    def allgather(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, parts: Sequence[Part]) -> Flight:
        """See `Way`."""
        start, stop = parts[turn.operation.rank]

        def collective(given: torch.Tensor, wanted: torch.Tensor) -> None:
            everything = wanted.view(-1)
            everything[start:stop].copy_(given.view(-1))
            self._host.allgather(turn.operation, turn.call.algorithm, everything, parts)

        self._staging.whole(tensor, out, collective, turn.ready)
        return Flight()

    def reduce_scatter(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, parts: Sequence[Part]) -> Flight:
        """See `Way`."""

        def collective(given: torch.Tensor, wanted: torch.Tensor) -> None:
            mine, to = given.view(-1), wanted.view(-1)
            self._host.reduce_scatter(turn.operation, turn.call.algorithm, mine, parts, turn.reduction, to)

        self._staging.whole(tensor, out, collective, turn.ready)
        return Flight()

    def alltoall(
        self, turn: Turn, rows: torch.Tensor, out: torch.Tensor, splits: Sequence[int], coming: Sequence[int]
    ) -> Flight:
        """See `Way`."""
        width = prod(rows.shape[1:])

        def collective(given: torch.Tensor, wanted: torch.Tensor) -> None:
            mine, to = given.view(len(given), width), wanted.view(len(wanted), width)
            self._host.exchange_rows(turn.operation, mine, splits, to, coming)

        self._staging.whole(rows, out, collective, turn.ready)
        return Flight()


class Alone:
    """In a group of one every result is a copy, made on the caller's own stream; nobody waits for it on the host."""

    stream: CudaStream | None = None

    def allreduce(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, *_: Sequence[Any]) -> Flight:
        """See `Way`."""
        if out is not tensor:
            with turn.stream.scope():
                out.copy_(tensor)
        return Flight()

    allgather = reduce_scatter = alltoall = allreduce

    def broadcast(self, turn: Turn, tensor: torch.Tensor, root: int) -> Flight:
        """See `Way`."""
        return Flight()


def parts_of(counts: Sequence[int], width: int) -> list[Part]:
    """Give the runs of elements that so many rows of `width` each take, one behind the other."""
    return [((stop - count) * width, stop * width) for count, stop in zip(counts, accumulate(counts), strict=True)]
