"""The `Way` without NCCL: CUDA tensors are copied through pinned host memory and use the collectives of CPU tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch

from hpsearch_comm.cuda.stream import CudaStream, Event, wait_until
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.operations.contiguous import flat, is_plain
from hpsearch_comm.operations.host_collectives import HostCollectives
from hpsearch_comm.operations.way import Part, Turn

CHUNK_BYTES = 16 * 2**20
"""Size of a chunk in bytes, for collectives that treat all elements alike."""

KEPT_BYTES = 64 * 2**20
"""Bytes of pinned memory that are kept for the next call. More is released, so that other processes can use it."""

_ALIGNMENT = 512


def pinned(nbytes: int) -> torch.Tensor:
    """Return `nbytes` of page-locked host memory."""
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)


class ThroughHost:
    """Copies tensors from the GPU, runs the collective on the CPU, and copies the result back.

    The collectives compare signatures themselves. When a method returns, the result is complete.

    Args:
        stream: The stream for copies; nothing else may be queued on it.
        host: Runs the collectives on the CPU.
        abort_state: The group's abort state. Waits for the GPU end when the group fails.
        allocate: Returns host memory of a given number of bytes.
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
            # Bound for the chunk's length, not for the whole tensor's.
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

    def alltoall(self, turn: Turn, rows: torch.Tensor, out: torch.Tensor, counts: Sequence[Sequence[int]]) -> None:
        """See `Way`."""
        self.whole(rows, out, lambda mine, result: self._host.alltoall(turn, mine, result, counts), turn.ready)

    def close(self) -> None:
        """Release the host memory; torch keeps it until the running copies have ended."""
        self._room = self._room.new_empty(0)

    def elementwise(
        self, tensor: torch.Tensor, out: torch.Tensor, collective: Callable[[torch.Tensor], object], ready: Event
    ) -> None:
        """Run a collective that treats all elements alike, in chunks.

        Args:
            tensor: The input on the device, of any shape and layout.
            out: The tensor for the result, with the input's shape and dtype, or the input itself.
            collective: Called for each chunk, a 1-D tensor on the CPU, to work on in place. An empty tensor has one
                empty chunk. Every rank gets the same chunks.
            ready: Event after which the input is ready.
        """
        with self._copies(ready, tensor, out) as (source, target):
            length = self._chunk_bytes // source.itemsize
            for part, result in zip(torch.split(source, length), torch.split(target, length), strict=True):
                chunk = self._memory_of(part.nbytes)[: part.nbytes].view(part.dtype)
                self._fetch(part, chunk)
                collective(chunk)
                with self.stream.scope():
                    result.copy_(chunk, non_blocking=True)

    def whole(
        self,
        tensor: torch.Tensor,
        out: torch.Tensor,
        collective: Callable[[torch.Tensor, torch.Tensor], object],
        ready: Event,
    ) -> None:
        """Run any collective on the whole tensors. It needs host memory for both.

        Args:
            tensor: The input on the device, of any shape and layout.
            out: The tensor for the result.
            collective: Called once, with contiguous CPU tensors of the same shapes: the input's values, and memory for
                the result, which it fills.
            ready: Event after which the input is ready.
        """
        with self._copies(ready, tensor, out) as (source, target):
            behind = -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
            memory = self._memory_of(behind + out.nbytes)
            mine = memory[: tensor.nbytes].view(tensor.dtype)
            result = memory[behind : behind + out.nbytes].view(out.dtype)
            self._fetch(source, mine)
            collective(mine.view(tensor.shape), result.view(out.shape))
            with self.stream.scope():
                target.copy_(result, non_blocking=True)

    def _memory_of(self, nbytes: int) -> torch.Tensor:
        """Return at least `nbytes` of host memory. Its size is a power of two, so that it is rarely reallocated."""
        if self._room.numel() < nbytes:
            self._room = self._allocate(1 << (nbytes - 1).bit_length())
        return self._room

    @contextlib.contextmanager
    def _copies(
        self, ready: Event, tensor: torch.Tensor, out: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Provide the input's elements and room for those of the result, 1-D, on the device. Afterwards fill `out`."""
        stream = self.stream
        stream.follow(ready)
        for each in (tensor, out):  # before any work is queued, so that the memory isn't reused even if that fails
            stream.keep(each)
        straight = is_plain(out)
        with stream.scope():
            source = flat(tensor)
            target = flat(out) if straight else out.new_empty(out.numel())
        yield source, target
        with stream.scope():
            if not straight:
                out.copy_(target.view(out.shape))
            finished = stream.record()
        self._wait(finished)
        if self._room.numel() > KEPT_BYTES:
            self.close()

    def _fetch(self, source: torch.Tensor, memory: torch.Tensor) -> None:
        """Copy elements to host memory, after the copies from there that are already queued, and wait for them."""
        with self.stream.scope():
            memory.copy_(source, non_blocking=True)
            arrived = self.stream.record()
        self._wait(arrived)

    def _wait(self, event: Event) -> None:
        wait_until(event.query, self._abort_state.check)
