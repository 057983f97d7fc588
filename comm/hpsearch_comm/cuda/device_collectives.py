"""Checks the arguments of an operation on CUDA tensors, and says what is to be done with them, and on which way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hpsearch_comm.collectives.host_collectives import HostCollectives
from hpsearch_comm.cuda.device_ways import Landed
from hpsearch_comm.cuda.nccl_reduction import unsupported
from hpsearch_comm.cuda.queue import Caller
from hpsearch_comm.cuda.staging import CHUNK_BYTES
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.operations.arguments import Call
from hpsearch_comm.operations.host_operations import HostOperations
from hpsearch_comm.operations.way import Turn, Way
from hpsearch_comm.operations.work import UnderWay
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

    def _algorithm(self, operation: str, nbytes: int, reduction: str, dtype: torch.dtype) -> str:
        if self._nccl is not None and (reduction == "none" or unsupported(reduction, dtype) is None):
            return "nccl"
        # Through host memory these go in chunks, one after the other.
        chunked = operation in ("allreduce", "broadcast")
        return self._host.algorithm(operation, min(nbytes, CHUNK_BYTES) if chunked else nbytes)

    def _prepared(self, call: Call, work: Callable[[Way, Turn], tuple[Any, UnderWay | None]]) -> Prepared[Any]:
        caller = self._caller()

        def launch(operation: Operation) -> UnderWay:
            way = self._nccl if call.algorithm == "nccl" and self._nccl is not None else self._otherwise()
            result, under_way = work(way, Turn(operation, call, caller))
            landing = Landed() if under_way is None else under_way
            landing.result = result
            return landing

        return Prepared(call, launch, launches=True)
