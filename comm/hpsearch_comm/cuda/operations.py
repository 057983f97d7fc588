"""Preparation of operations on CUDA tensors: argument checks, and the choice between NCCL and host memory.

Before every NCCL operation, the ranks compare their calls on the CPU. NCCL doesn't compare anything: if counts differ,
it writes past the end of a tensor or hangs. A comparison at the first call of each kind wouldn't suffice, because ranks
can still call two known operations in different orders. The comparison also ensures that no kernel spins on the GPU for
a peer that never calls the operation.

The gradient buckets of a training step are the exception: their plan, which the ranks agreed on when it was created,
fixes the order, shapes and dtypes. If a rank calls another operation there, this is detected when it waits: it
announces its operation, and the other ranks see that theirs with the same number differs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hpsearch_comm.cuda.process_group import supports
from hpsearch_comm.cuda.staging import CHUNK_BYTES
from hpsearch_comm.cuda.stream import CudaStream
from hpsearch_comm.operations.arguments import Call
from hpsearch_comm.operations.host_collectives import HostCollectives
from hpsearch_comm.operations.host_operations import HostOperations
from hpsearch_comm.operations.way import Turn, Way
from hpsearch_comm.operations.work import UnderWay
from hpsearch_comm.operations.work_queue import Prepared

_MEETING = ("allgather", "alltoall")
"""Operations in which the ranks exchange numbers of rows first, and so have already compared their calls."""


class DeviceOperations(HostOperations):
    """Prepares operations on tensors of one CUDA device.

    Args:
        host: Runs the exchanges between ranks on the CPU.
        device: The device's number among those that the group has used, from 1.
        current: Returns the current stream; called in the caller's thread.
        nccl: The way through NCCL; None if the ranks haven't agreed on NCCL.
        otherwise: The way for all other operations.
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

    def _algorithm(self, operation: str, nbytes: int, reduction: str, dtype: torch.dtype) -> str:
        if self._nccl is not None and supports(reduction, dtype):
            return "nccl"
        chunked = operation in ("allreduce", "broadcast")  # through host memory
        return self.host.algorithm(operation, min(nbytes, CHUNK_BYTES) if chunked else nbytes)

    def _prepared(
        self, call: Call, work: Callable[[Way, Turn], tuple[Any, UnderWay | None]], agreed: bool = False
    ) -> Prepared[Any]:
        stream = self._current()
        ready = stream.record()

        def launch(turn: Turn) -> UnderWay:
            turn.stream, turn.ready = stream, ready
            way: Way = self._otherwise
            if self._nccl is not None and call.algorithm == "nccl":
                way = self._nccl
                if not agreed and call.operation not in _MEETING:
                    self.host.barrier(turn, self._meeting)
            result, under_way = work(way, turn)
            under_way = under_way or UnderWay()
            under_way.result = result
            return under_way

        return Prepared(call, launch, launches=True)

    def _empty(self, way: Way, turn: Turn, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        # Allocated on the stream that will write it, then also used by the caller's stream.
        with (way.stream or turn.stream).scope():
            result = like.new_empty(shape)
        turn.stream.keep(result)
        return result


class Alone:
    """The `Way` of a group of one: results are copies, made on the caller's stream without waiting on the host."""

    stream: CudaStream | None = None

    def allreduce(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, *_: Sequence[Any]) -> None:
        """See `Way`."""
        if out is not tensor:
            with turn.stream.scope():
                out.copy_(tensor)

    allgather = reduce_scatter = alltoall = allreduce

    def broadcast(self, turn: Turn, tensor: torch.Tensor, root: int) -> None:
        """See `Way`."""
