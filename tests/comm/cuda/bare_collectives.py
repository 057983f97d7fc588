"""The operations of a process group of torch's without a group around it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hpsearch_comm.collectives.parts import parts_of
from hpsearch_comm.collectives.reduction import reduction_for
from hpsearch_comm.cuda.process_group import ThroughProcessGroup
from hpsearch_comm.cuda.stream import CudaStream, Event
from hpsearch_comm.header import Signature
from hpsearch_comm.operations.arguments import Call
from hpsearch_comm.operations.work import UnderWay
from hpsearch_comm.operations.work_queue import Turn


class BareCollectives:
    """Calls the operations from a stream, with nothing compared before.

    Args:
        collectives: Whose.
        current: Returns the stream that the caller computes on.
        timeout: Seconds after which an unfinished operation fails.
    """

    def __init__(
        self, collectives: ThroughProcessGroup, current: Callable[[], CudaStream], timeout: float = 30.0
    ) -> None:
        self.collectives = collectives
        self.close = collectives.close
        self._current = current
        self._timeout = timeout
        self._numbers = itertools.count()

    def allreduce(
        self, tensor: torch.Tensor, op: str = "mean", out: torch.Tensor | None = None, ready: Event | None = None
    ) -> UnderWay:
        result = tensor if out is None else out
        source = tensor.detach()
        return self._run("allreduce", source, source if out is None else out.detach(), None, result, op, ready=ready)

    def reduce_scatter(self, tensor: torch.Tensor, op: str, out: torch.Tensor, counts: Sequence[int]) -> UnderWay:
        return self._run("reduce_scatter", tensor, out, parts_of(counts, 1), out, op)

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> UnderWay:
        return self._run("broadcast", tensor, tensor, root, tensor, root=root)

    def allgather(self, tensor: torch.Tensor, out: torch.Tensor, counts: Sequence[int]) -> UnderWay:
        return self._run("allgather", tensor, out, parts_of(counts, 1), out)

    def alltoall(self, rows: torch.Tensor, out: torch.Tensor, splits: Sequence[int], coming: Sequence[int]) -> UnderWay:
        counts = [[count] * len(coming) for count in coming]
        counts[self.collectives.rank] = list(splits)
        return self._run("alltoall", rows, out, counts, out)

    def _run(
        self,
        operation: str,
        tensor: torch.Tensor,
        out: torch.Tensor,
        detail: Any,
        result: torch.Tensor,
        op: str | None = None,
        *,
        root: int = -1,
        ready: Event | None = None,
    ) -> UnderWay:
        turn = bare_turn(operation, tensor, op, root, next(self._numbers))
        turn.rank, turn.abort_state, turn.timeout = self.collectives.rank, self.collectives.abort_state, self._timeout
        turn.stream = self._current()
        turn.ready = turn.stream.record() if ready is None else ready
        self.collectives.run(turn, tensor, out, detail)
        assert turn.under_way is not None
        turn.under_way.result = result
        return turn.under_way


def bare_turn(operation: str, tensor: torch.Tensor, op: str | None = None, root: int = -1, number: int = 0) -> Turn:
    """Return the turn of an operation that no queue runs."""
    reduction = None if op is None else reduction_for(op, tensor.dtype)
    name = "none" if reduction is None else reduction.name
    signature = Signature(number, operation, "nccl", tensor.dtype, tuple(tensor.shape), name, root, 1)
    turn = Turn.__new__(Turn)
    turn.packed, turn.call = signature.pack(), Call.of(signature, reduction, None)
    return turn
