"""How a collective of tensors is carried out, where they lie: the way through this machine's memory is here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any, Protocol, TypeVar

import torch

from hpsearch_comm.collectives.host_collectives import HostCollectives
from hpsearch_comm.collectives.reduction import Reduction
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.operations.arguments import Call
from hpsearch_comm.operations.contiguous import flat, is_plain, put_back
from hpsearch_comm.operations.work import UnderWay
from hpsearch_comm.shm.copying import copy

__all__ = ["Part", "ThroughMemory", "Turn", "Way", "allreduce", "parts_of"]

T = TypeVar("T")
Part = tuple[int, int]


@dataclass(slots=True)
class Turn:
    """An operation in its turn."""

    operation: Operation
    call: Call
    stream: Any = None
    """Of tensors on a device: the stream on which the caller computes, which another thread's current one isn't."""
    ready: Any = None
    """The point that the stream had come to at the call."""

    @property
    def reduction(self) -> Reduction:
        """Of a call that has one."""
        assert self.call.reduction is not None
        return self.call.reduction


class Way(Protocol):
    """Carries out collectives. Tensors have any layout; parts are runs of elements, by rank.

    Shapes, dtypes, devices and layouts of the tensors fit together: that has been checked with the call's arguments.
    What a GPU has been given to do is still under way when a method returns; None where all is done.
    """

    @property
    def stream(self) -> Any:
        """On which results are to be made, to be lent to the caller's stream; None for the caller's own."""

    def allreduce(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor) -> UnderWay | None:
        """Reduce the ranks' tensors into everybody's `out`, which may be the tensor; the same bits on every rank."""

    def broadcast(self, turn: Turn, tensor: torch.Tensor, root: int) -> UnderWay | None:
        """Copy the root's tensor into everybody's."""

    def allgather(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, parts: Sequence[Part]) -> UnderWay | None:
        """Copy the ranks' tensors into everybody's `out`. The ranks have exchanged their sizes."""

    def reduce_scatter(
        self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, parts: Sequence[Part]
    ) -> UnderWay | None:
        """Reduce the ranks' tensors, and give each its part in `out`."""

    def alltoall(
        self, turn: Turn, rows: torch.Tensor, out: torch.Tensor, splits: Sequence[int], coming: Sequence[int]
    ) -> UnderWay | None:
        """Send some rows to each rank, and get some from each in `out`, which is contiguous.

        The ranks have exchanged the numbers.
        """


class ThroughMemory:
    """The way of tensors in this machine's memory.

    Args:
        host: Carries them out, on elements in a row.
    """

    stream = None
    """Results are the caller's own as they are made."""

    def __init__(self, host: HostCollectives) -> None:
        self._host = host

    def allreduce(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor) -> None:
        """See `Way`."""
        allreduce(turn.call, tensor, out, None, turn.operation)

    def broadcast(self, turn: Turn, tensor: torch.Tensor, root: int) -> None:
        """See `Way`."""
        mine = flat(tensor)
        self._host.broadcast(turn.operation, turn.call.algorithm, mine, root)
        if root != turn.operation.rank:
            put_back(mine, tensor)

    def allgather(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, parts: Sequence[Part]) -> None:
        """See `Way`."""
        everything = _room(out)
        start, stop = parts[turn.operation.rank]
        copy(everything[start:stop], flat(tensor))  # which may lie in `out`, there or elsewhere
        self._host.allgather(turn.operation, turn.call.algorithm, everything, parts)
        put_back(everything, out)

    def reduce_scatter(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, parts: Sequence[Part]) -> None:
        """See `Way`."""
        to = _room(out)
        self._host.reduce_scatter(turn.operation, turn.call.algorithm, flat(tensor), parts, turn.reduction, to)
        put_back(to, out)

    def alltoall(
        self, turn: Turn, rows: torch.Tensor, out: torch.Tensor, splits: Sequence[int], coming: Sequence[int]
    ) -> None:
        """See `Way`."""
        width = prod(rows.shape[1:])
        mine, to = flat(rows).view(len(rows), width), out.view(len(out), width)
        self._host.exchange_rows(turn.operation, mine, splits, to, coming)


def parts_of(counts: Sequence[int], width: int) -> list[Part]:
    """Return the runs of elements, in sequence, that these counts of rows of `width` elements take."""
    return [((stop - count) * width, stop * width) for count, stop in zip(counts, accumulate(counts), strict=True)]


def allreduce(call: Call, tensor: torch.Tensor, out: torch.Tensor, result: T, operation: Operation) -> T:
    """Reduce the ranks' tensors, in this machine's memory, into everybody's `out`, and pass the result on."""
    carry = call.carry
    assert carry is not None
    mine = flat(tensor)
    to = mine if out is tensor else flat(out)
    carry(operation, mine, to)
    put_back(to, out)
    return result


def _room(out: torch.Tensor) -> torch.Tensor:
    """Return room for as many elements in a row: the tensor's own memory where it is plain, for `put_back`."""
    return out.view(-1) if is_plain(out) else out.new_empty(out.numel())
