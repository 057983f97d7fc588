"""CUDA tensors through pinned host memory, for any collective that works on the CPU.

A tensor goes in chunks, each down from the GPU, through the collective, and up again, and three of them are under way
at once:

    chunk        0         1         2         3
    down       | copy    | copy    | copy    | copy    |
    collective           | chunk 0 | chunk 1 | chunk 2 | chunk 3 |
    up                             | copy    | copy    | copy    | copy    |

A slot of pinned memory is filled again when its last copy up is done: the copies down wait for that in the GPU, the
host doesn't. The host waits for each copy down, by looking, since the collective reads what it brings; and never for
one up.

Which streams wait for which: the copies begin when the GPU has done what the caller's current stream was given before
the call, and what that stream is given after the call begins when the copies up are done. For a call in the thread of
an queue, which has a current stream of its own, `ready` stands for the caller's stream, and the call returns when the
GPU has done everything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from hpsearch_comm.cuda.queue import CudaQueue, Event, Queue, wait_until
from hpsearch_comm.errors import UsageError
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.operations.arguments import check_device
from hpsearch_comm.operations.contiguous import flat, is_plain

__all__ = ["HostStaging", "chunks", "layout"]

CHUNK_BYTES = 4 * 2**20
SLOTS = 3
KEPT_BYTES = 64 * 2**20
"""What a collective that is carried whole may leave for the next one; longer memory is given back, since pinned memory
is no other process's while it is kept."""

_ALIGNMENT = 512
_WIDEST = 16  # complex128


class HostStaging:
    """Carries collectives of CUDA tensors through pinned host memory. One thread at a time may call it.

    Args:
        device: The CUDA device of all tensors, with its number.
        abort_state: The group's; its end ends the waits for the GPU.
        chunk_bytes: Bytes that are copied at once; every rank must have the same.
        allocate: Gives host memory of so many bytes, in place of pinned memory from torch.
        queues: For the copies down and up, in place of two new streams of the device.
    """

    def __init__(
        self,
        device: torch.device,
        abort_state: AbortState,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        allocate: Callable[[int], torch.Tensor] | None = None,
        queues: tuple[Queue, Queue] | None = None,
    ) -> None:
        self.device = device
        self._abort_state = abort_state
        self._chunk_bytes = max(chunk_bytes, _WIDEST)
        self._allocate = _pinned if allocate is None else allocate
        self._down, self._up = (CudaQueue(device), CudaQueue(device)) if queues is None else queues
        self._slots: list[torch.Tensor] = []
        self._slab = torch.empty(0, dtype=torch.uint8, device="cpu")
        self._last_up: list[Event | None] = [None] * SLOTS
        self._slab_up: Event | None = None

    def mark(self) -> Event:
        """Mark the point that the caller's current stream has come to; for `ready`."""
        return self._down.mark()

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Make room for a result, on the stream that will write it; to be lent to the caller's stream."""
        with self._up.scope():
            return torch.empty(tuple(shape), dtype=dtype, device=self.device)

    def elementwise(
        self,
        tensor: torch.Tensor,
        collective: Callable[[torch.Tensor], object],
        *,
        out: torch.Tensor | None = None,
        ready: Event | None = None,
    ) -> torch.Tensor:
        """Carry out a collective that does the same to each element: allreduce, broadcast.

        Args:
            tensor: Of any shape and layout, on the device.
            collective: Called with one chunk after the other, 1-D tensors on the CPU, to work on in place. Every rank
                gets the same chunks, and an empty one where the tensor is empty.
            out: Where the result goes, in place of `tensor`.
            ready: Where the tensor is ready, for a call from another thread; see `mark`.

        Returns:
            `out`, or the tensor.
        """
        result = tensor if out is None else out
        check_device(self.device, (tensor, result))
        if result.shape != tensor.shape:
            raise UsageError(f"out must have the tensor's shape {list(tensor.shape)}, got {list(result.shape)}")
        self._begin(ready, (tensor, result))
        with self._down.scope():
            source = flat(tensor)
            straight = is_plain(result)
            target = flat(result) if straight else torch.empty_like(source)
        self._keep((source, target))
        done = self._pipeline(source, target, collective)
        if not straight:
            with self._up.scope():
                self._up.follow(done)
                result.detach().copy_(target.view(result.shape))
                done = self._up.record()
        self._end(done, ready)
        return result

    def whole(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        collective: Callable[[list[torch.Tensor], list[torch.Tensor]], object],
        *,
        ready: Event | None = None,
    ) -> None:
        """Carry out any collective: allgather, reduce_scatter, alltoall. It takes host memory for all of the tensors.

        Up to 64 MiB of that are kept for the next one.

        Args:
            inputs: What this rank gives; of any shape and layout, on the device.
            outputs: Where the results go.
            collective: Called once, with tensors on the CPU, contiguous and of the same shapes: the inputs' values, and
                room for the outputs', which it fills.
            ready: Where the inputs are ready, for a call from another thread; see `mark`.
        """
        check_device(self.device, (*inputs, *outputs))
        places, total = layout([tensor.nbytes for tensor in (*inputs, *outputs)])
        self._begin(ready, (*inputs, *outputs))
        if self._slab_up is not None:
            self._down.follow(self._slab_up)
        if self._slab.numel() < total:
            # The old one may still be read by the GPU; torch keeps pinned memory until that has ended.
            self._slab = self._allocate(_rounded(total))
        hosts = [
            self._slab[place : place + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            for place, tensor in zip(places, (*inputs, *outputs), strict=True)
        ]
        host_inputs, host_outputs = hosts[: len(inputs)], hosts[len(inputs) :]
        with self._down.scope():
            for host, tensor in zip(host_inputs, inputs, strict=True):
                # Flat, since torch would conjugate what has come down at once, and not when it has come down.
                host.view(-1).copy_(flat(tensor), non_blocking=True)
            arrived = self._down.record()
        self._wait(arrived)
        collective(host_inputs, host_outputs)
        with self._up.scope():
            for host, tensor in zip(host_outputs, outputs, strict=True):
                tensor.detach().copy_(host, non_blocking=True)
            done = self._slab_up = self._up.record()
        if self._slab.numel() > KEPT_BYTES:
            self._forget_slab()
        self._end(done, ready)

    def close(self) -> None:
        """Give the host memory back; torch keeps it until the copies that are under way have ended."""
        self._slots = []
        self._last_up = [None] * SLOTS
        self._forget_slab()

    def _forget_slab(self) -> None:
        """Give it to torch, which keeps it until the copies that are under way have ended."""
        self._slab = torch.empty(0, dtype=torch.uint8, device="cpu")
        self._slab_up = None

    def _pipeline(
        self, source: torch.Tensor, target: torch.Tensor, collective: Callable[[torch.Tensor], object]
    ) -> Event:
        parts = chunks(source.numel(), source.itemsize, self._chunk_bytes)
        arrived = self._fetch(source, parts, 0)
        for index, (start, stop) in enumerate(parts):
            # The next one comes down while this one is worked on.
            coming = self._fetch(source, parts, index + 1) if index + 1 < len(parts) else arrived
            self._wait(arrived)
            host = self._slot(index, source.dtype, stop - start)
            collective(host)
            with self._up.scope():
                target[start:stop].copy_(host, non_blocking=True)
                done = self._last_up[index % SLOTS] = self._up.record()
            arrived = coming
        return done

    def _fetch(self, source: torch.Tensor, parts: Sequence[tuple[int, int]], index: int) -> Event:
        """Queue the copy of a chunk into its slot, behind the copy up that last read the slot."""
        start, stop = parts[index]
        busy = self._last_up[index % SLOTS]
        if busy is not None:
            self._down.follow(busy)
        with self._down.scope():
            self._slot(index, source.dtype, stop - start).copy_(source[start:stop], non_blocking=True)
            return self._down.record()

    def _slot(self, index: int, dtype: torch.dtype, numel: int) -> torch.Tensor:
        place = index % SLOTS
        while len(self._slots) <= place:
            self._slots.append(self._allocate(self._chunk_bytes))
        return self._slots[place][: numel * dtype.itemsize].view(dtype)

    def _begin(self, ready: Event | None, tensors: Sequence[torch.Tensor]) -> None:
        before = self._down.mark() if ready is None else ready
        self._down.follow(before)
        self._up.follow(before)
        # Before anything is queued: whatever goes wrong there, memory that the GPU may still write isn't given away.
        self._keep(tensors)

    def _keep(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            self._down.keep(tensor)
            self._up.keep(tensor)

    def _end(self, done: Event, ready: Event | None) -> None:
        if ready is None:
            self._up.release(done)
        else:
            self._wait(done)

    def _wait(self, event: Event) -> None:
        wait_until(event.query, self._abort_state.check)


def chunks(numel: int, itemsize: int, chunk_bytes: int) -> list[tuple[int, int]]:
    """Cut so many elements into runs of at most `chunk_bytes`, as (start, stop); one empty run where there are none.

    The runs are equally long, but for the last: a short one at the end costs as much waiting as a long one.
    """
    longest = max(1, chunk_bytes // itemsize)
    count = max(1, -(-numel // longest))
    length = -(-numel // count)
    return [(index * length, min((index + 1) * length, numel)) for index in range(count)]


def layout(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Place blocks of so many bytes one behind the other, aligned; gives their offsets and the bytes of them all."""
    offsets = []
    end = 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return offsets, end


def _rounded(nbytes: int) -> int:
    """Round up to a power of two, at least a chunk, so that memory that grows is made anew only a few times."""
    return max(CHUNK_BYTES, 1 << (nbytes - 1).bit_length())


def _pinned(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
