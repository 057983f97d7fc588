"""CUDA tensors through pinned host memory, for any collective that works on the CPU.

A tensor goes in chunks, each down from the GPU, through the collective, and up again, and three of them are under way
at once:

    chunk        0         1         2         3
    down       | copy    | copy    | copy    | copy    |
    collective           | chunk 0 | chunk 1 | chunk 2 | chunk 3 |
    up                             | copy    | copy    | copy    | copy    |

A slot of pinned memory is filled again when its last copy up is done: the copies down wait for that in the GPU, the
host doesn't. The host waits for each copy down, by looking, since the collective reads what it brings; and, at the end,
for the last one up. So host memory is free again when a call returns. (A call that raises ends the group.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from hpsearch_comm.cuda.stream import CudaStream, Event, wait_until
from hpsearch_comm.failure.abort import AbortState
from hpsearch_comm.operations.contiguous import flat, is_plain

__all__ = ["CHUNK_BYTES", "HostStaging", "chunks"]

CHUNK_BYTES = 4 * 2**20
SLOTS = 3
KEPT_BYTES = 64 * 2**20
"""What a call may leave for the next one; longer memory is given back, since pinned memory is no other process's while
it is kept."""

_ALIGNMENT = 512


class HostStaging:
    """Carries collectives of CUDA tensors through pinned host memory. One thread at a time may call it.

    Args:
        down: For the copies to host memory.
        up: For the copies from there. Results are to be made on this stream.
        abort_state: The group's; its end ends the waits for the GPU.
        chunk_bytes: Bytes that are copied at once, a multiple of 16; every rank must have the same.
        allocate: Gives host memory of so many bytes, in place of pinned memory from torch.
    """

    def __init__(
        self,
        down: CudaStream,
        up: CudaStream,
        abort_state: AbortState,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        allocate: Callable[[int], torch.Tensor] | None = None,
    ) -> None:
        self.up = up
        self._down = down
        self._abort_state = abort_state
        self._chunk_bytes = chunk_bytes
        self._allocate = _pinned if allocate is None else allocate
        self._memory: torch.Tensor | None = None

    def elementwise(
        self, tensor: torch.Tensor, out: torch.Tensor, collective: Callable[[torch.Tensor], object], ready: Event
    ) -> None:
        """Carry out a collective that does the same to each element: allreduce, broadcast.

        Args:
            tensor: Of any shape and layout, on the device.
            out: Where the result goes; of the tensor's shape and dtype, or the tensor itself.
            collective: Called with one chunk after the other, 1-D tensors on the CPU, to work on in place. Every rank
                gets the same chunks, and an empty one where the tensor is empty.
            ready: Where the tensor is ready.
        """
        self._begin(ready, tensor, out)
        with self._down.scope():
            source = flat(tensor)
            straight = is_plain(out)
            target = flat(out) if straight else torch.empty_like(source)
        self._keep(source, target)
        done = self._pipeline(source, target, collective)
        if not straight:
            with self.up.scope():
                out.copy_(target.view(out.shape))
                done = self.up.record()
        self._end(done)

    def whole(
        self,
        tensor: torch.Tensor,
        out: torch.Tensor,
        collective: Callable[[torch.Tensor, torch.Tensor], object],
        ready: Event,
    ) -> None:
        """Carry out any collective: allgather, reduce_scatter, alltoall. It takes host memory for both tensors.

        Args:
            tensor: What this rank gives; of any shape and layout, on the device.
            out: Where the result goes.
            collective: Called once, with tensors on the CPU, contiguous and of the same shapes: the tensor's values,
                and room for the result, which it fills.
            ready: Where the tensor is ready.
        """
        self._begin(ready, tensor, out)
        behind = -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        memory = self._room(behind + out.nbytes)
        given = memory[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        wanted = memory[behind : behind + out.nbytes].view(out.dtype).view(out.shape)
        with self._down.scope():
            # Flat, since torch would conjugate what has come down at once, and not when it has come down.
            given.view(-1).copy_(flat(tensor), non_blocking=True)
            arrived = self._down.record()
        self._wait(arrived)
        collective(given, wanted)
        with self.up.scope():
            out.copy_(wanted, non_blocking=True)
            done = self.up.record()
        self._end(done)

    def close(self) -> None:
        """Give the host memory back; torch keeps it until the copies that are under way have ended."""
        self._memory = None

    def _pipeline(
        self, source: torch.Tensor, target: torch.Tensor, collective: Callable[[torch.Tensor], object]
    ) -> Event:
        parts = chunks(source.numel(), source.itemsize, self._chunk_bytes)
        memory = self._room(min(len(parts), SLOTS) * self._chunk_bytes)
        slots: list[torch.Tensor] = []
        last_up: list[Event] = []

        def fetch(index: int) -> Event:
            """Queue the copy of a chunk into its slot, behind the copy up that last read the slot."""
            start, stop = parts[index]
            place = index % SLOTS * self._chunk_bytes
            slots.append(memory[place : place + (stop - start) * source.itemsize].view(source.dtype))
            if index >= SLOTS:
                self._down.follow(last_up[index - SLOTS])
            with self._down.scope():
                slots[index].copy_(source[start:stop], non_blocking=True)
                return self._down.record()

        arrived = fetch(0)
        for index, (start, stop) in enumerate(parts):
            # The next one comes down while this one is worked on.
            coming = fetch(index + 1) if index + 1 < len(parts) else arrived
            self._wait(arrived)
            collective(slots[index])
            with self.up.scope():
                target[start:stop].copy_(slots[index], non_blocking=True)
                last_up.append(self.up.record())
            arrived = coming
        return last_up[-1]

    def _room(self, nbytes: int) -> torch.Tensor:
        """Give host memory of so many bytes or more: a power of two, so that what grows is made anew a few times."""
        if self._memory is None or self._memory.numel() < nbytes:
            self._memory = self._allocate(max(self._chunk_bytes, 1 << (nbytes - 1).bit_length()))
        return self._memory

    def _begin(self, ready: Event, *tensors: torch.Tensor) -> None:
        self._down.follow(ready)
        self.up.follow(ready)
        # Before anything is queued: whatever goes wrong there, memory that the GPU may still write isn't given away.
        self._keep(*tensors)

    def _keep(self, *tensors: torch.Tensor) -> None:
        for tensor in tensors:
            self._down.keep(tensor)
            self.up.keep(tensor)

    def _end(self, done: Event) -> None:
        self._wait(done)
        if self._memory is not None and self._memory.numel() > KEPT_BYTES:
            self._memory = None

    def _wait(self, event: Event) -> None:
        wait_until(event.query, self._abort_state.check)


def chunks(numel: int, itemsize: int, chunk_bytes: int) -> Sequence[tuple[int, int]]:
    """Cut so many elements into runs of at most `chunk_bytes`, as (start, stop); one empty run where there are none.

    The runs are equally long, but for the last: a short one at the end costs as much waiting as a long one.
    """
    count = max(1, -(-numel // (chunk_bytes // itemsize)))
    length = -(-numel // count)
    return [(index * length, min((index + 1) * length, numel)) for index in range(count)]


def _pinned(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
