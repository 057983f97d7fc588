"""The parts of direct collectives: the first barrier, and the stages of chunks in staging memory.

A chunk passes through two or three stages: it is staged for the ranks that reduce it, or published for all ranks; it is
reduced; the results are gathered. Each stage is one chunk behind the stage before it. In a step, all stages work on
different chunks at the same time, so one barrier after each step serves all of them.

Staging memory has two sides, which chunks use alternately (see `Staging`): data written in one step is read in the next
step, and overwritten one step later at the earliest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from hpsearch_comm.collectives.reduction import Reduction
from hpsearch_comm.collectives.shm.chunks import fold
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.shm.buffers import SharedBuffer
from hpsearch_comm.shm.copying import copy
from hpsearch_comm.shm.shm_segment import ShmSegment

LINE = 64
"""Size of a cache line in bytes. Chunks and parts start at multiples of it."""

Stage = Callable[[int], object]


class Pipeline:
    """The chunks of one operation in staging memory.

    Args:
        shm: The host's shared memory.
        operation: The running operation.
        spans: The tensors to move.
        longest: Elements of the longest span of all ranks, if it isn't among these. It determines the number of chunks.
    """

    def __init__(
        self, shm: ShmSegment, operation: Operation, spans: Sequence[torch.Tensor], longest: int | None = None
    ) -> None:
        itemsize = spans[0].dtype.itemsize
        longest = max(span.numel() for span in spans) if longest is None else longest
        self._shm = shm
        self._operation = operation
        self._count = count = -(-longest * itemsize // shm.results.capacity)
        self._length = -(-longest * itemsize // (max(count, 1) * LINE)) * LINE // itemsize
        self._input_turn = shm.inputs.turn
        self.result_turn = shm.results.turn
        shm.inputs.turn += count
        shm.results.turn += count

    def run(self, *stages: Stage) -> None:
        """Run all stages for all chunks, each stage one step behind the one before. `meet` was the first step."""
        shm, operation, count = self._shm, self._operation, self._count
        steps = count + len(stages) - 1
        with operation.phase("chunk by chunk"):
            for step in range(1, steps):
                for lag, stage in enumerate(stages):
                    if 0 <= step - lag < count:
                        stage(step - lag)
                if step < steps - 1:
                    shm.barrier.wait(operation)

    def cut(self, span: torch.Tensor, number: int) -> torch.Tensor:
        """Return a chunk of a span; empty after the end of a span that is shorter than the longest."""
        if self._count <= 1:
            return span
        return span[number * self._length : (number + 1) * self._length]

    def stage(self, number: int, spans: Sequence[torch.Tensor]) -> None:
        """Write this rank's values for the members that reduce them."""
        shm = self._shm
        for member, span in enumerate(spans):
            if member != shm.index:
                chunk = self.cut(span, number)
                view = shm.inputs.view(shm.index, self._input_turn + number, member, chunk.dtype, chunk.numel())
                copy(view, chunk)

    def publish(self, number: int, span: torch.Tensor) -> None:
        """Write this rank's values for all members."""
        chunk = self.cut(span, number)
        row = self._shm.results.row(self.result_turn + number, chunk.dtype, chunk.numel())
        copy(row[self._shm.index], chunk)

    def reduce(
        self, number: int, spans: Sequence[torch.Tensor], reduction: Reduction, out: torch.Tensor, *, finish: bool
    ) -> None:
        """Reduce this rank's values and those that others have staged for it, in the order of ranks."""
        shm = self._shm
        index, turn = shm.index, self._input_turn + number
        own_chunk = self.cut(spans[index], number)
        if own_chunk.numel():
            views = [
                own_chunk
                if member == index
                else shm.inputs.view(member, turn, index, own_chunk.dtype, own_chunk.numel())
                for member in range(shm.size)
            ]
            fold(shm, self._operation, reduction, views, out, finish=finish)

    def collect(self, number: int, spans: Sequence[torch.Tensor]) -> None:
        """Copy the values that others have staged for this rank."""
        shm, turn = self._shm, self._input_turn + number
        for member, span in enumerate(spans):
            if member != shm.index:
                chunk = self.cut(span, number)
                copy(chunk, shm.inputs.view(member, turn, shm.index, chunk.dtype, chunk.numel()))

    def gather(self, number: int, spans: Sequence[torch.Tensor]) -> None:
        """Copy the values that others have published."""
        shm = self._shm
        for member, span in enumerate(spans):
            if member != shm.index:
                chunk = self.cut(span, number)
                view = shm.results.view(member, self.result_turn + number, 0, chunk.dtype, chunk.numel())
                copy(chunk, view)


def meet(
    shm: ShmSegment, operation: Operation, location: tuple[SharedBuffer, int] | None, first: Callable[[], object]
) -> list[int] | None:
    """Wait for all ranks, and stage the first chunk unless all tensors are in the same shared buffer.

    Args:
        shm: The host's shared memory.
        operation: Compared with the other ranks' operations before any data is used.
        location: Location of this rank's tensor in a shared buffer; None if it isn't in one.
        first: Function that stages the first chunk.

    Returns:
        If all ranks' tensors are in the same shared buffer, the byte offset of each; else None.
    """
    if location is None:
        first()
    with operation.phase("meet"):
        locations = shm.meet_at(operation, location)
    buffer = locations[0][0]
    if buffer >= 0 and all(number == buffer for number, _ in locations):
        return [offset for _, offset in locations]
    if any(number >= 0 for number, _ in locations):
        if location is not None:
            first()
        shm.barrier.wait(operation)
    return None


def spans_of(shm: ShmSegment, tensor: torch.Tensor, parts: Sequence[tuple[int, int]]) -> list[torch.Tensor]:
    """Slice a tensor into the members' parts; a member without a part gets an empty slice."""
    spans = [tensor[start:stop] for start, stop in parts]
    return spans + [tensor[:0]] * (shm.size - len(spans))
