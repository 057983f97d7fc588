"""The ways that a collective of CUDA tensors can take: through NCCL, through host memory, or nowhere in a group of one.

Every operation on every way is run in its turn, be it in the caller's thread or in the work queue's. So there is one
order of all operations, on the CPU and on GPUs, the same on every rank, and nothing can wait in a circle: the first
operation that isn't finished everywhere is one that every rank comes to, since what lies before it has ended, or is
with the GPUs, which need nothing more from the host. The caller's stream comes along.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hpsearch_comm.collectives.host_collectives import HostCollectives
from hpsearch_comm.cuda.staging import HostStaging
from hpsearch_comm.cuda.stream import CudaStream
from hpsearch_comm.operations.way import Part, ThroughMemory, Turn

__all__ = ["Alone", "ThroughHost"]


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
        self._memory = ThroughMemory(host)

    def allreduce(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor) -> None:
        """See `Way`."""
        host, operation, algorithm, reduction = self._host, turn.operation, turn.call.algorithm, turn.reduction

        def collective(chunk: torch.Tensor) -> None:
            host.allreduce(operation, algorithm, chunk, reduction, chunk)  # not what was bound for the whole tensor

        self._staging.elementwise(tensor, out, collective, turn.ready)

    def broadcast(self, turn: Turn, tensor: torch.Tensor, root: int) -> None:
        """See `Way`."""
        self._staging.elementwise(tensor, tensor, lambda chunk: self._memory.broadcast(turn, chunk, root), turn.ready)

    def allgather(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, parts: Sequence[Part]) -> None:
        """See `Way`."""
        self._staging.whole(
            tensor, out, lambda given, wanted: self._memory.allgather(turn, given, wanted, parts), turn.ready
        )

    def reduce_scatter(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, parts: Sequence[Part]) -> None:
        """See `Way`."""
        self._staging.whole(
            tensor, out, lambda given, wanted: self._memory.reduce_scatter(turn, given, wanted, parts), turn.ready
        )

    def alltoall(
        self, turn: Turn, rows: torch.Tensor, out: torch.Tensor, splits: Sequence[int], coming: Sequence[int]
    ) -> None:
        """See `Way`."""
        self._staging.whole(
            rows, out, lambda given, wanted: self._memory.alltoall(turn, given, wanted, splits, coming), turn.ready
        )


class Alone:
    """In a group of one every result is a copy, made on the caller's own stream; nobody waits for it on the host."""

    stream: CudaStream | None = None

    def allreduce(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, *_: Sequence[Any]) -> None:
        """See `Way`."""
        if out is not tensor:
            with turn.stream.scope():
                out.copy_(tensor)

    allgather = reduce_scatter = alltoall = allreduce

    def broadcast(self, turn: Turn, tensor: torch.Tensor, root: int) -> None:
        """See `Way`."""
