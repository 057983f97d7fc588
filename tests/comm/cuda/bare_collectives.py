"""The operations of a process group of torch's without a group around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from hpsearch_comm.collectives.reduction import reduction_for
from hpsearch_comm.cuda.process_group import DeviceWork, ThroughProcessGroup
from hpsearch_comm.cuda.stream import CudaStream, Event
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.operations.arguments import Call
from hpsearch_comm.operations.way import Turn, parts_of


class BareCollectives:
    """Calls the operations from a stream, with nothing compared before.

    Args:
        collectives: Whose.
        current: Returns the stream that the caller computes on.
    """

    def __init__(self, collectives: ThroughProcessGroup, current: Callable[[], CudaStream]) -> None:
        self.collectives = collectives
        self.close = collectives.close
        self._current = current

    def allreduce(
        self, tensor: torch.Tensor, op: str = "mean", out: torch.Tensor | None = None, ready: Event | None = None
    ) -> DeviceWork:
        result = tensor if out is None else out
        turn = self._turn(op, tensor.dtype, ready)
        return giving(result, self.collectives.allreduce(turn, tensor.detach(), result.detach()))

    def reduce_scatter(self, tensor: torch.Tensor, op: str, out: torch.Tensor, counts: Sequence[int]) -> DeviceWork:
        turn = self._turn(op, tensor.dtype)
        return giving(out, self.collectives.reduce_scatter(turn, tensor, out, parts_of(counts, 1)))

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> DeviceWork:
        return giving(tensor, self.collectives.broadcast(self._turn(), tensor, root))

    def allgather(self, tensor: torch.Tensor, out: torch.Tensor, counts: Sequence[int]) -> DeviceWork:
        return giving(out, self.collectives.allgather(self._turn(), tensor, out, parts_of(counts, 1)))

    def alltoall(
        self, rows: torch.Tensor, out: torch.Tensor, splits: Sequence[int], coming: Sequence[int]
    ) -> DeviceWork:
        counts = [[count] * len(coming) for count in coming]
        counts[self.collectives.rank] = list(splits)
        return giving(out, self.collectives.alltoall(self._turn(), rows, out, counts))

    def _turn(self, op: str | None = None, dtype: torch.dtype = torch.float32, ready: Event | None = None) -> Turn:
        stream = self._current()
        reduction = None if op is None else reduction_for(op, dtype)
        call = Call("", "nccl", 0, b"", b"", reduction, None)
        turn = Turn(0, b"", 1.0, cast(AbortState, None))
        turn.call, turn.stream, turn.ready = call, stream, stream.record() if ready is None else ready
        return turn


def giving(result: Any, work: DeviceWork) -> DeviceWork:
    work.result = result
    return work
