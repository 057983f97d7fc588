"""The interface of the ways in which collectives run: on the CPU, with NCCL, or through host memory."""

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
    """A running operation, with the description of its call.

    Attributes:
        stream: The caller's CUDA stream, for tensors on a GPU. The current stream of the queue's thread is another one.
        ready: Event recorded on this stream at the call.
    """

    __slots__ = ("call",)

    call: Call
    stream: Any = None
    ready: Any = None

    @property
    def reduction(self) -> Reduction:
        """The reduction of the call, which must have one."""
        assert self.call.reduction is not None
        return self.call.reduction


class Way(Protocol):
    """Runs collectives. Tensors may have any layout; parts are (start, stop) of elements, by rank.

    The shapes, dtypes, devices and layouts of the tensors have already been checked. A method returns the GPU work that
    is still running, or None if everything is done.
    """

    @property
    def stream(self) -> Any:
        """The stream on which to allocate results; None for the caller's stream, which uses the results in any case."""

    def allreduce(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor) -> UnderWay | None:
        """Reduce the ranks' tensors into every rank's `out`, which may be the tensor. All ranks get the same bits."""

    def broadcast(self, turn: Turn, tensor: torch.Tensor, root: int) -> UnderWay | None:
        """Copy the root's tensor to all ranks, in place."""

    def allgather(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, parts: Sequence[Part]) -> UnderWay | None:
        """Copy the ranks' tensors into every rank's `out`. The ranks have already exchanged their sizes."""

    def reduce_scatter(
        self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, parts: Sequence[Part]
    ) -> UnderWay | None:
        """Reduce the ranks' tensors, and write each rank's part to its `out`."""

    def alltoall(
        self, turn: Turn, rows: torch.Tensor, out: torch.Tensor, counts: Sequence[Sequence[int]]
    ) -> UnderWay | None:
        """Send rows to each rank, and receive rows from each in `out`, which is contiguous.

        The ranks have already exchanged the numbers of rows: rank i sends `counts[i][j]` rows to rank j.
        """


def parts_of(counts: Sequence[int], width: int) -> list[Part]:
    """Return the (start, stop) of elements for successive parts with these counts of rows, each of `width` elements."""
    return [((stop - count) * width, stop * width) for count, stop in zip(counts, accumulate(counts), strict=True)]
