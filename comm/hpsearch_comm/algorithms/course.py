"""What direct collectives are made of: chunks on their way through staging memory, and the reduction of tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch

from hpsearch_comm.memory.arena import Arena
from hpsearch_comm.memory.buffers import SharedBuffer
from hpsearch_comm.memory.staging import CHUNK
from hpsearch_comm.operation import Operation
from hpsearch_comm.reduction import Reduction

__all__ = ["LINE", "SERIAL", "Course", "copy", "fold"]

PIECE = 512 << 10
"""Bytes per call of torch: what one call leaves in the core's own cache, the next finds there."""

SERIAL = (1 << 15) - 64
"""Elements below which torch starts no threads."""

LINE = 64

_memmove = ctypes.memmove

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
        threads = torch.get_num_threads()
        self.piece = PIECE // itemsize
        if threads > 1:
            # torch starts threads of its own for long tensors. They help where there are cores for all ranks' threads,
            # but not from a thread beside the caller's, where they would be a second set of them.
            if operation.spin and threads * arena.size <= arena.cores:
                self.piece *= threads
            else:
                self.piece = min(self.piece, SERIAL)

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
        aliased = self._arena.index > 1
        piece = self.piece
        if out.numel() <= piece:
            fold(self._arena, reduction, sources, out, finish=finish, aliased=aliased)
            return
        for cut in range(0, out.numel(), piece):
            of_piece = [source[cut : cut + piece] for source in sources]
            fold(self._arena, reduction, of_piece, out[cut : cut + piece], finish=finish, aliased=aliased)


def fold(
    arena: Arena,
    reduction: Reduction,
    sources: Sequence[torch.Tensor],
    out: torch.Tensor,
    *,
    finish: bool,
    aliased: bool = False,
) -> None:
    """Reduce the sources in order.

    Args:
        arena: Gives memory for partial results.
        reduction: The operator.
        sources: One of each member.
        out: Where the result goes.
        finish: Whether it is final.
        aliased: Whether `out` may be one of the sources after the second: it would be lost before its turn.
    """
    partial = reduction.accumulate if reduction.widens else out.dtype
    total = arena.scratch(partial, out.numel()) if aliased or out.dtype is not partial else out
    first, second, *others = sources
    if first.dtype is partial:
        reduction.into(first, second, total)
    else:
        total.copy_(first)
        reduction.combine(total, second)
    for theirs in others:
        reduction.combine(total, theirs)
    if finish:
        reduction.finish(total, len(sources))
    if out.dtype is not partial:
        out.copy_(total)
    elif total is not out:
        copy(out, total)


def copy(to: torch.Tensor, source: torch.Tensor) -> None:
    """Copy memory: both contiguous, on the CPU, of one dtype and length.

    The C library's copy writes without reading the lines it overwrites, which makes it up to twice as fast as torch's
    from 64 KB on, and starts no threads.
    """
    _memmove(to.data_ptr(), source.data_ptr(), to.nbytes)
