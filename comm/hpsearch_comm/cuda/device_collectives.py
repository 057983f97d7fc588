"""Checks the arguments of an operation on CUDA tensors, and says what is to be done with them, and on which way.

Before an operation goes through NCCL, the ranks meet on the CPU and compare what they call: before every one, not only
before the first of its kind. NCCL compares nothing: where counts differ it writes past the end of a tensor or hangs,
and ranks that agreed on a kind of call once can still call two of them in different orders. A meeting takes 5 to 50 us
of the host's time, as long as NCCL's own launch; asynchronous operations spend it in the work queue's thread, while the
GPU computes. In return no kernel is launched that spins on the GPU for a peer who never comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, cast

import torch

from hpsearch_comm.collectives.host_collectives import HostCollectives
from hpsearch_comm.cuda.device_ways import Flight, Turn, Way, parts_of
from hpsearch_comm.cuda.nccl_reduction import supports
from hpsearch_comm.cuda.staging import CHUNK_BYTES
from hpsearch_comm.cuda.stream import CudaStream
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
        current: Gives the current stream, called in the caller's thread.
        nccl: The way through NCCL, where the ranks have agreed on it.
        otherwise: The way of all other operations.
    """

    def __init__(
        self,
        host: HostCollectives,
        device: int,
        current: Callable[[], CudaStream],
        nccl: Way | None,
        otherwise: Way,
    ) -> None:
        super().__init__(host, device)
        self._current = current
        self._nccl = nccl
        self._otherwise = otherwise
        self._meeting = host.algorithm("barrier", 0)

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
            parts = parts_of([count for (count,) in counts], prod(rest))
            shape = (sum(count for (count,) in counts), *rest)
            fits = target is not None and gathered_fits(turn.operation, target, rows, shape)
            to = target if target is not None and fits else _empty(way, turn, shape, rows)
            return _giving(to if out is None else out, way.allgather(turn, rows, to, parts))

        return self._prepared(call, work, meets=True)

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
            to = _empty(way, turn, shape, source) if target is None else target
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
            to = _empty(way, turn, (sum(coming), *rest), source)
            return _giving((to, coming), way.alltoall(turn, source, to, counts, coming))

        return self._prepared(call, work, meets=True)

    def _algorithm(self, operation: str, nbytes: int, reduction: str, dtype: torch.dtype) -> str:
        if self._nccl is not None and supports(reduction, dtype):
            return "nccl"
        # Through host memory these go in chunks, one after the other.
        chunked = operation in ("allreduce", "broadcast")
        return self._host.algorithm(operation, min(nbytes, CHUNK_BYTES) if chunked else nbytes)

    def _prepared(self, call: Call, work: Callable[[Way, Turn], Flight], *, meets: bool = False) -> Prepared[Any]:
        """Prepare the work; `meets` says that the ranks meet in it, before it goes on its way."""
        stream = self._current()
        ready = stream.record()

        def launch(operation: Operation) -> Flight:
            way = self._otherwise
            if self._nccl is not None and call.algorithm == "nccl":
                way = self._nccl
                if not meets:
                    self._host.barrier(operation, self._meeting)
            return work(way, Turn(operation, call, stream, ready))

        return Prepared(call, cast(Any, launch), launches=True)


def _giving(result: Any, flight: Flight) -> Flight:
    """Let an operation give what its caller expects, rather than what the way makes of it."""
    flight.result = result
    return flight


def _empty(way: Way, turn: Turn, shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    """Make room for a result, on the stream that will write it, and lend it to the caller's stream."""
    with (way.stream or turn.stream).scope():
        result = like.new_empty(tuple(shape))
    turn.stream.keep(result)
    return result
