"""Checks the arguments of an operation on CUDA tensors, and says what is to be done with them, and on which way.

Before an operation goes through NCCL, the ranks meet on the CPU and compare what they call: before every one, not only
before the first of its kind. NCCL compares nothing: where counts differ it writes past the end of a tensor or hangs,
and ranks that agreed on a kind of call once can still call two of them in different orders. In return no kernel is
launched that spins on the GPU for a peer who never comes.

The gradient buckets of a training step are the exception: their plan fixes the order, shapes and dtypes, and was agreed
when it was made. A rank that calls something else there is seen when it waits: it announces its operation, and the
others find that theirs of the same number is another one.
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
"""Operations whose ranks tell each other numbers first, and so have met."""


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
        # On the stream that will write it, and lent to the caller's.
        with (way.stream or turn.stream).scope():
            result = like.new_empty(shape)
        turn.stream.keep(result)
        return result


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
