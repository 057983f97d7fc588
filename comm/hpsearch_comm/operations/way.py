"""How a collective of tensors is carried out, where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Protocol

import torch

from hpsearch_comm.collectives.reduction import Reduction
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.operations.arguments import Call
from hpsearch_comm.operations.work import UnderWay

Part = tuple[int, int]


class Turn(Operation):
    """An operation in its turn, with the call that it is of.

    Attributes:
        stream: Of tensors on a device: the stream on which the caller computes, which another thread's current one
            isn't.
        ready: The point that the stream had come to at the call.
    """

    __slots__ = ("call",)

    call: Call
    stream: Any = None
    ready: Any = None

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


def parts_of(counts: Sequence[int], width: int) -> list[Part]:
    """Return the runs of elements, in sequence, that these counts of rows of `width` elements take."""
    return [((stop - count) * width, stop * width) for count, stop in zip(counts, accumulate(counts), strict=True)]
