"""Checks the arguments of an operation on CUDA tensors, and says what is to be done with them, and on which way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import prod
from typing import Any, cast

import torch

from hpsearch_comm.collectives.host_collectives import HostCollectives
from hpsearch_comm.cuda.device_ways import Flight, Turn, Way
from hpsearch_comm.cuda.nccl_reduction import unsupported
from hpsearch_comm.cuda.queue import Caller
from hpsearch_comm.cuda.staging import CHUNK_BYTES
from hpsearch_comm.errors import UsageError
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.operations.arguments import Call, check_out, check_root, check_target, check_tensor
from hpsearch_comm.operations.host_operations import HostOperations, check_gathered, gathered_fits
from hpsearch_comm.operations.work_queue import Prepared

__all__ = ["DeviceOperations"]


class DeviceOperations(HostOperations):
    """Prepares operations on tensors of one CUDA device.

    Args:
        host: Carries out what ranks have to tell each other on the CPU.
        device: The device's number among those that the group has used, from 1.
        caller: Gives the current stream, called in the caller's thread.
        nccl: The way through NCCL, where the ranks have agreed on it.
        otherwise: Gives the way of all other operations; called in the operation's turn.
    """

    def __init__(
        self,
        host: HostCollectives,
        device: int,
        caller: Callable[[], Caller],
        nccl: Way | None,
        otherwise: Callable[[], Way],
    ) -> None:
        super().__init__(host, device)
        self._caller = caller
        self._nccl = nccl
        self._otherwise = otherwise

    def allreduce(self, tensor: torch.Tensor, op: str, out: torch.Tensor | None) -> Prepared[torch.Tensor]:
        """Prepare `Group.allreduce`."""
        source = check_tensor("allreduce", tensor)
        call = self._reducing("allreduce", source, op)
        if out is None:
            target = check_target("allreduce's tensor", source)
        else:
            target = check_out("allreduce", out, source, source.shape, source)
        result = tensor if out is None else out

        def work(way: Way, turn: Turn) -> Flight:
            return _giving(result, way.allreduce(turn, source, target))

        return self._prepared(call, work)

    def broadcast(self, tensor: torch.Tensor, root: int) -> Prepared[torch.Tensor]:
        """Prepare `Group.broadcast`."""
        source = check_tensor("broadcast", tensor)
        root = check_root(root, self._size)
        if root != self._rank:
            check_target("broadcast's tensor", source)
        call = self._call("broadcast", source.dtype, source.shape, root)

        def work(way: Way, turn: Turn) -> Flight:
            return _giving(tensor, way.broadcast(turn, source, root))

        return self._prepared(call, work)

    def allgather(self, tensor: torch.Tensor, out: torch.Tensor | None) -> Prepared[torch.Tensor]:
        """Prepare `Group.allgather`."""
        source = check_tensor("allgather", tensor)
        rows = source if source.dim() else source.view(1)
        rest = rows.shape[1:]
        target = None if out is None else check_gathered(out, rows)
        call = self._call("allgather", rows.dtype, (0, *rest))
        telling = self._host.algorithm("allgather", 0)

        def work(way: Way, turn: Turn) -> Flight:
            counts = self._host.allgather_numbers(turn.operation, telling, [rows.shape[0]])
            parts = _parts([count for (count,) in counts], prod(rest))
            shape = (sum(count for (count,) in counts), *rest)
            fits = target is not None and gathered_fits(turn.operation, target, rows, shape)
            to = target if target is not None and fits else way.empty(turn, shape, rows)
            return _giving(to if out is None else out, way.allgather(turn, rows, to, parts))

        return self._prepared(call, work)

    def reduce_scatter(self, tensor: torch.Tensor, op: str, out: torch.Tensor | None) -> Prepared[torch.Tensor]:
        """Prepare `Group.reduce_scatter`."""
        source = check_tensor("reduce_scatter", tensor)
        if source.dim() == 0:
            raise UsageError("reduce_scatter shares out the rows of a tensor, got one without dimensions")
        call = self._reducing("reduce_scatter", source, op)
        rest, width = source.shape[1:], prod(source.shape[1:])
        rows = self._host.row_parts(source.shape[0], 1)
        parts = [(start * width, stop * width) for start, stop in rows]
        start, stop = rows[self._rank]
        shape = (stop - start, *rest)
        target = None if out is None else check_out("reduce_scatter", out, source, shape)

        def work(way: Way, turn: Turn) -> Flight:
            to = way.empty(turn, shape, source) if target is None else target
            return _giving(to if out is None else out, way.reduce_scatter(turn, source, to, parts))

        return self._prepared(call, work)

    def alltoall(self, tensor: torch.Tensor, splits: Sequence[int] | None) -> Prepared[tuple[torch.Tensor, list[int]]]:
        """Prepare `Group.alltoall`."""
        source = check_tensor("alltoall", tensor)
        if source.dim() == 0:
            raise UsageError("alltoall shares out the rows of a tensor, got one without dimensions")
        counts = self._splits(source.shape[0], splits)
        rest = source.shape[1:]
        call = self._call("alltoall", source.dtype, (0, *rest))

        def work(way: Way, turn: Turn) -> Flight:
            coming = self._host.coming_rows(turn.operation, counts)
            to = way.empty(turn, (sum(coming), *rest), source)
            return _giving((to, coming), way.alltoall(turn, source, counts, to, coming))

        return self._prepared(call, work)

    def _algorithm(self, operation: str, nbytes: int, reduction: str, dtype: torch.dtype) -> str:
        if self._nccl is not None and (reduction == "none" or unsupported(reduction, dtype) is None):
            return "nccl"
        # Through host memory these go in chunks, one after the other.
        chunked = operation in ("allreduce", "broadcast")
        return self._host.algorithm(operation, min(nbytes, CHUNK_BYTES) if chunked else nbytes)

    def _prepared(self, call: Call, work: Callable[[Way, Turn], Flight]) -> Prepared[Any]:
        caller = self._caller()

        def launch(operation: Operation) -> Flight:
            way = self._nccl if call.algorithm == "nccl" and self._nccl is not None else self._otherwise()
            return work(way, Turn(operation, call, caller))

        return Prepared(call, cast(Any, launch), launches=True)


def _giving(result: Any, flight: Flight) -> Flight:
    """Let an operation give what its caller expects, rather than what the way makes of it."""
    flight.result = result
    return flight


def _parts(counts: Sequence[int], width: int) -> list[tuple[int, int]]:
    """Give the runs of elements that so many rows of `width` each take, one behind the other."""
    return [((stop - count) * width, stop * width) for count, stop in zip(counts, accumulate(counts), strict=True)]
