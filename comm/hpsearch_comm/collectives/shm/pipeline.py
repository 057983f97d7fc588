"""What direct collectives are made of: a meeting, and chunks on their way through staging memory.

A chunk passes through two or three stages: it is staged for the ranks that reduce it, or published for all; they reduce
it; all gather the results. Each stage is one chunk behind the one before, with a barrier between two steps, so that
all stages of a step work at the same time on different chunks, and one barrier serves them all.

Staging memory has two sides, which chunks take in turn (see `Staging`): what is written in one step is read in the next
one, and overwritten in the one after that at the earliest.
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
"""Bytes at whose multiples chunks and parts begin: a cache line."""

Stage = Callable[[int], object]


class Pipeline:
    """One operation's way through staging memory, chunk by chunk.

    Args:
        shm: The host's.
        operation: Under way.
        spans: What is moved; the longest one sets the number of chunks, on every rank the same.
    """

    def __init__(self, shm: ShmSegment, operation: Operation, spans: Sequence[torch.Tensor]) -> None:
        itemsize = spans[0].dtype.itemsize
        longest = max(span.numel() for span in spans)
        self._shm = shm
        self._operation = operation
        self._count = count = -(-longest * itemsize // shm.results.capacity)
        self._length = -(-longest * itemsize // (max(count, 1) * LINE)) * LINE // itemsize
        self._input_turn = shm.inputs.turn
        self.result_turn = shm.results.turn
        shm.inputs.turn += count
        shm.results.turn += count

    def run(self, *stages: Stage) -> None:
        """Bring all chunks through all stages, each a step behind the one before; `meet` was the first step."""
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
        """Return a chunk of a span; empty where the span is shorter than others."""
        if self._count <= 1:
            return span
        return span[number * self._length : (number + 1) * self._length]

    def stage(self, number: int, spans: Sequence[torch.Tensor]) -> None:
        """Put this rank's values where the members that reduce them will read them."""
        shm = self._shm
        for member, span in enumerate(spans):
            if member != shm.index:
                chunk = self.cut(span, number)
                view = shm.inputs.view(shm.index, self._input_turn + number, member, chunk.dtype, chunk.numel())
                copy(view, chunk)

    def publish(self, number: int, span: torch.Tensor) -> None:
        """Put this rank's values where all members will read them."""
        chunk = self.cut(span, number)
        row = self._shm.results.row(self.result_turn + number, chunk.dtype, chunk.numel())
        copy(row[self._shm.index], chunk)

    def reduce(
        self, number: int, spans: Sequence[torch.Tensor], reduction: Reduction, out: torch.Tensor, *, finish: bool
    ) -> None:
        """Reduce what others have staged for this rank with its own values, in the order of ranks."""
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

    def gather(self, number: int, spans: Sequence[torch.Tensor]) -> None:
        """Copy what others have published."""
        shm = self._shm
        for member, span in enumerate(spans):
            if member != shm.index:
                chunk = self.cut(span, number)
                view = shm.results.view(member, self.result_turn + number, 0, chunk.dtype, chunk.numel())
                copy(chunk, view)


def meet(
    shm: ShmSegment, operation: Operation, location: tuple[SharedBuffer, int] | None, first: Callable[[], object]
) -> list[int] | None:
    """Meet, with the first chunk of the tensors staged.

    Args:
        shm: The host's.
        operation: Compared with the other ranks' before anything is used.
        location: Where this rank's tensor lies in a shared buffer, if it does.
        first: Stages the first chunk.

    Returns:
        If all ranks' tensors lie in the same buffer, each one's byte in it, and nothing was staged; else None.
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
    """Slice a tensor into (start, stop) of each member, empty for members that have no part."""
    spans = [tensor[start:stop] for start, stop in parts]
    return spans + [tensor[:0]] * (shm.size - len(spans))
