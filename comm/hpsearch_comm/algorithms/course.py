"""What direct collectives are made of: chunks on their way through staging memory, and the reduction of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from hpsearch_comm.memory.arena import Arena
from hpsearch_comm.memory.buffers import SharedBuffer
from hpsearch_comm.memory.copying import copy
from hpsearch_comm.memory.staging import CHUNK
from hpsearch_comm.operation import Operation
from hpsearch_comm.reduction import Reduction

__all__ = ["LINE", "SERIAL", "Course", "fold"]

PIECE = 256 << 10
"""Bytes per call of torch in what is longer than a chunk: what one call leaves in the core's own cache, the next finds
there."""

SERIAL = (1 << 15) - 64
"""Elements below which torch starts no threads."""

LINE = 64

Stage = Callable[[int], object]


class Course:
    """One operation's way through staging memory, chunk by chunk.

    Args:
        arena: The host's.
        operation: Under way.
        spans: What is moved; the longest one sets the number of chunks, on every rank the same.
    """

    def __init__(self, arena: Arena, operation: Operation, spans: Sequence[torch.Tensor]) -> None:
        itemsize = spans[0].dtype.itemsize
        longest = max(span.numel() for span in spans)
        self._arena = arena
        self._operation = operation
        self._count = count = -(-longest * itemsize // CHUNK)
        self._length = -(-longest * itemsize // (max(count, 1) * LINE)) * LINE // itemsize
        self._input_turn = arena.inputs.turn
        self.result_turn = arena.results.turn
        arena.inputs.turn += count
        arena.results.turn += count
        self._piece, self._most = PIECE // itemsize, CHUNK // itemsize
        threads = torch.get_num_threads()
        if threads > 1:
            # torch starts threads of its own for long tensors. They help where there are cores for all ranks' threads,
            # but not from a thread beside the caller's, where they would be a second set of them.
            if operation.spin and threads * arena.size <= arena.cores:
                self._piece *= threads
            else:
                self._piece = self._most = min(self._piece, SERIAL)

    def step(self, reduction: Reduction) -> int:
        """Give how many elements to reduce at a time: fewer where wider partial results need room in the cache too."""
        return self._piece // 2 if reduction.widens else self._piece

    def begin(self, place: tuple[SharedBuffer, int] | None, first: Callable[[], object]) -> list[int] | None:
        """Meet, with the first chunk staged.

        Args:
            place: Where this rank's tensor lies in a shared buffer, if it does.
            first: Stages the first chunk.

        Returns:
            If all ranks' tensors lie in the same buffer, each one's byte in it, and nothing was staged; else None.
        """
        arena, operation = self._arena, self._operation
        if place is None:
            first()
        with operation.phase("meet"):
            places = arena.meet_at(operation, place)
        buffer = places[0][0]
        if buffer >= 0 and all(number == buffer for number, _ in places):
            return [offset for _, offset in places]
        if any(number >= 0 for number, _ in places):
            if place is not None:
                first()
            arena.barrier.wait(operation, arena.compare)
        return None

    def run(self, *stages: Stage) -> None:
        """Bring all chunks through all stages, each a step behind the one before; `begin` was the first step."""
        arena, operation, count = self._arena, self._operation, self._count
        steps = count + len(stages) - 1
        with operation.phase("chunk by chunk"):
            for step in range(1, steps):
                for lag, stage in enumerate(stages):
                    if 0 <= step - lag < count:
                        stage(step - lag)
                if step < steps - 1:
                    arena.barrier.wait(operation, arena.compare)

    def cut(self, span: torch.Tensor, number: int) -> torch.Tensor:
        """Give a chunk of a span; empty where the span is shorter than others."""
        if self._count <= 1:
            return span
        return span[number * self._length : (number + 1) * self._length]

    def stage(self, number: int, spans: Sequence[torch.Tensor]) -> None:
        """Put this rank's values where the members that reduce them will read them."""
        arena = self._arena
        for member, span in enumerate(spans):
            if member != arena.index:
                chunk = self.cut(span, number)
                view = arena.inputs.view(arena.index, self._input_turn + number, member, chunk.dtype, chunk.numel())
                copy(view, chunk)

    def publish(self, number: int, span: torch.Tensor) -> None:
        """Put this rank's values where all members will read them."""
        chunk = self.cut(span, number)
        row = self._arena.results.row(self.result_turn + number, chunk.dtype, chunk.numel())
        copy(row[self._arena.index], chunk)

    def reduce(
        self, number: int, spans: Sequence[torch.Tensor], reduction: Reduction, out: torch.Tensor, *, finish: bool
    ) -> None:
        """Reduce what others have staged for this rank with its own values, in the order of ranks."""
        arena = self._arena
        index, turn = arena.index, self._input_turn + number
        own = self.cut(spans[index], number)
        if own.numel():
            views = [
                own if member == index else arena.inputs.view(member, turn, index, own.dtype, own.numel())
                for member in range(arena.size)
            ]
            self.fold(reduction, views, out, finish=finish)

    def gather(self, number: int, spans: Sequence[torch.Tensor]) -> None:
        """Copy what others have published."""
        arena = self._arena
        for member, span in enumerate(spans):
            if member != arena.index:
                chunk = self.cut(span, number)
                view = arena.results.view(member, self.result_turn + number, 0, chunk.dtype, chunk.numel())
                copy(chunk, view)

    def fold(self, reduction: Reduction, sources: Sequence[torch.Tensor], out: torch.Tensor, *, finish: bool) -> None:
        """Reduce the sources into `out`, which may be one of them, piece by piece."""
        arena, length = self._arena, out.numel()
        step = length if length <= self._most and not reduction.widens else self.step(reduction)
        for cut in range(0, length, max(step, 1)):
            slices = sources if step == length else [source[cut : cut + step] for source in sources]
            piece = out if step == length else out[cut : cut + step]
            fold(arena, reduction, slices, piece, finish=finish)


def fold(
    arena: Arena, reduction: Reduction, sources: Sequence[torch.Tensor], out: torch.Tensor, *, finish: bool
) -> None:
    """Reduce the sources in order.

    Args:
        arena: Gives memory for partial results.
        reduction: The operator.
        sources: One of each member.
        out: Where the result goes. It may be the first source, or this rank's own.
        finish: Whether the result is final.
    """
    if out.dtype is not reduction.accumulate:
        total = arena.scratch(reduction.accumulate, out.numel())
        total.copy_(sources[0])
        rest = sources[1:]
    else:
        # What lies in `out` may be this rank's own source: until its turn has come, the sum grows elsewhere.
        own = arena.index
        total = out if own < 2 else arena.scratch(out.dtype, out.numel())
        reduction.into(sources[0], sources[1], total)
        for theirs in sources[2:own]:
            reduction.combine(total, theirs)
        if own >= 2:
            reduction.into(total, sources[own], out)
            total = out
        rest = sources[max(own + 1, 2) :]
    for theirs in rest:
        reduction.combine(total, theirs)
    if finish:
        reduction.finish(total, len(sources))
    if total is not out:
        out.copy_(total)
