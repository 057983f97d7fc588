"""The `Way` without NCCL: CUDA tensors are copied through pinned host memory and use the collectives of CPU tensors."""

from __future__ import annotations

from typing import Any

import torch

from hpsearch_comm.cuda.stream import CudaStream, wait_until
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.operations.contiguous import flat
from hpsearch_comm.operations.host_operations import Way
from hpsearch_comm.operations.work_queue import Turn


class ThroughHost:
    """Copies tensors from the GPU, runs the collective on the CPU, and copies the result back.

    The collectives compare signatures themselves. When `run` returns, the result is complete.

    Args:
        stream: The stream for copies; nothing else may be queued on it.
        host: Runs the collectives on the CPU.
        abort_state: The group's abort state. Waits for the GPU end when the group fails.
    """

    def __init__(self, stream: CudaStream, host: Way, abort_state: AbortState) -> None:
        self.stream = stream
        self._host = host
        self._abort_state = abort_state

    def run(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, detail: Any) -> None:
        """See `Way`."""
        stream = self.stream
        stream.follow(turn.ready)
        for each in {id(each): each for each in (tensor, out)}.values():
            stream.keep(each)  # before any work is queued, so that the memory isn't reused even if that fails
        mine = _host_memory(tensor)
        result = mine if out is tensor else _host_memory(out)
        with stream.scope():
            mine.view(-1).copy_(flat(tensor), non_blocking=True)
        self._synchronize()
        self._host.run(turn, mine, result, detail)
        if turn.call.operation == "broadcast" and detail == turn.rank:
            return  # the root's tensor may have elements that share memory, which can't be written
        with stream.scope():
            out.copy_(result, non_blocking=True)
        self._synchronize()

    def _synchronize(self) -> None:
        wait_until(self.stream.record().query, self._abort_state.check)


def _host_memory(like: torch.Tensor) -> torch.Tensor:
    """Return contiguous memory of the same shape and dtype, page-locked for a tensor on a GPU. torch caches it."""
    return torch.empty(like.shape, dtype=like.dtype, device="cpu", pin_memory=like.is_cuda)
