"""CUDA tensors through pinned host memory and the collectives of CPU tensors: the `Way` where NCCL can't be used."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from hpsearch_comm.cuda.stream import CudaStream, Event, wait_until
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.operations.contiguous import flat, is_plain
from hpsearch_comm.operations.host_collectives import HostCollectives
from hpsearch_comm.operations.way import Part, Turn

CHUNK_BYTES = 16 * 2**20
"""Bytes of a tensor that are sent at once, where the collective does the same to each element."""

KEPT_BYTES = 64 * 2**20
"""Pinned memory that a call may leave for the next one; more is given back, as no other process has it meanwhile."""

_ALIGNMENT = 512


def pinned(nbytes: int) -> torch.Tensor:
    """Return page-locked host memory of so many bytes."""
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)


class ThroughHost:
    """Copies tensors down from the GPU, runs the collective on the CPU, and copies the result up.

    The collectives compare signatures themselves. When a method returns, the result is there.

    Args:
        stream: For the copies; nothing else may be put on it.
        host: Carries out what lies on the CPU.
        abort_state: The group's; its end ends the waits for the GPU.
        allocate: Returns host memory of so many bytes.
        chunk_bytes: A multiple of 16, the same on every rank.
    """

    def __init__(
        self,
        stream: CudaStream,
        host: HostCollectives,
        abort_state: AbortState,
        allocate: Callable[[int], torch.Tensor] = pinned,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self.stream = stream
        self._host = host
        self._abort_state = abort_state
        self._allocate = allocate
        self._chunk_bytes = chunk_bytes
        self._room = torch.empty(0, dtype=torch.uint8, device="cpu")

    def allreduce(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor) -> None:
        """See `Way`."""
        host, algorithm, reduction = self._host, turn.call.algorithm, turn.reduction

        def collective(chunk: torch.Tensor) -> None:
            # Not what was bound for the whole tensor.
            host.bind_allreduce(algorithm, reduction, chunk.numel())(turn, chunk, chunk)

        self.elementwise(tensor, out, collective, turn.ready)

    def broadcast(self, turn: Turn, tensor: torch.Tensor, root: int) -> None:
        """See `Way`."""
        self.elementwise(tensor, tensor, lambda chunk: self._host.broadcast(turn, chunk, root), turn.ready)

    def allgather(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, parts: Sequence[Part]) -> None:
        """See `Way`."""
        self.whole(tensor, out, lambda mine, result: self._host.allgather(turn, mine, result, parts), turn.ready)

    def reduce_scatter(self, turn: Turn, tensor: torch.Tensor, out: torch.Tensor, parts: Sequence[Part]) -> None:
        """See `Way`."""
        self.whole(tensor, out, lambda mine, result: self._host.reduce_scatter(turn, mine, result, parts), turn.ready)

    def alltoall(
        self, turn: Turn, rows: torch.Tensor, out: torch.Tensor, splits: Sequence[int], coming: Sequence[int]
    ) -> None:
        """See `Way`."""
        self.whole(rows, out, lambda mine, result: self._host.alltoall(turn, mine, result, splits, coming), turn.ready)

    def close(self) -> None:
        """Release the host memory; torch keeps it until the copies that are under way have ended."""
        self._room = self._room.new_empty(0)

    def elementwise(
        self, tensor: torch.Tensor, out: torch.Tensor, collective: Callable[[torch.Tensor], object], ready: Event
    ) -> None:
        """Run a collective that does the same to each element.

        Args:
            tensor: Of any shape and layout, on the device.
            out: Where the result goes; of the tensor's shape and dtype, or the tensor itself.
            collective: Called with one chunk after the other, 1-D tensors on the CPU, to work on in place; with an
                empty one if the tensor is empty. Every rank gets the same chunks.
            ready: Where the tensor is ready.
        """
        stream = self.stream
        self._begin(ready, tensor, out)
        with stream.scope():
            source = flat(tensor)
            straight = is_plain(out)
            target = flat(out) if straight else torch.empty_like(source)
        length = self._chunk_bytes // source.itemsize
        finished = ready
        for start in range(0, max(1, source.numel()), length):
            part = source[start : start + length]
            chunk = self._memory_of(part.nbytes)[: part.nbytes].view(part.dtype)
            with stream.scope():
                # Behind the copy up of the chunk before, which reads the same host memory.
                chunk.copy_(part, non_blocking=True)
                arrived = stream.record()
            self._wait(arrived)
            collective(chunk)
            with stream.scope():
                target[start : start + length].copy_(chunk, non_blocking=True)
                finished = stream.record()
        if not straight:
            with stream.scope():
                out.copy_(target.view(out.shape))
                finished = stream.record()
        self._end(finished)

    def whole(
        self,
        tensor: torch.Tensor,
        out: torch.Tensor,
        collective: Callable[[torch.Tensor, torch.Tensor], object],
        ready: Event,
    ) -> None:
        """Run any collective. It takes host memory for both tensors.

        Args:
            tensor: Of any shape and layout, on the device.
            out: Where the result goes.
            collective: Called once, with contiguous tensors on the CPU of the same shapes: the tensor's values, and
                memory for the result, which it fills.
            ready: Where the tensor is ready.
        """
        stream = self.stream
        self._begin(ready, tensor, out)
        behind = -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        memory = self._memory_of(behind + out.nbytes)
        mine = memory[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        result = memory[behind : behind + out.nbytes].view(out.dtype).view(out.shape)
        with stream.scope():
            # Flat, since torch would conjugate what has come down at once, and not when it has come down.
            mine.view(-1).copy_(flat(tensor), non_blocking=True)
            arrived = stream.record()
        self._wait(arrived)
        collective(mine, result)
        with stream.scope():
            out.copy_(result, non_blocking=True)
            finished = stream.record()
        self._end(finished)

    def _memory_of(self, nbytes: int) -> torch.Tensor:
        """Return host memory of so many bytes or more: a power of two, so that it is seldom allocated anew."""
        if self._room.numel() < nbytes:
            self._room = self._allocate(1 << (nbytes - 1).bit_length())
        return self._room

    def _begin(self, ready: Event, *tensors: torch.Tensor) -> None:
        self.stream.follow(ready)
        for tensor in tensors:  # before anything is queued: its memory isn't given away, whatever goes wrong there
            self.stream.keep(tensor)

    def _end(self, finished: Event) -> None:
        self._wait(finished)
        if self._room.numel() > KEPT_BYTES:
            self.close()

    def _wait(self, event: Event) -> None:
        wait_until(event.query, self._abort_state.check)
