"""The reduction of tensors in memory, in calls of torch that are neither too long nor too short."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hpsearch_comm.memory.arena import Arena
from hpsearch_comm.memory.staging import CHUNK
from hpsearch_comm.operation import Operation
from hpsearch_comm.reduction import Reduction

__all__ = ["SERIAL", "Pieces", "fold"]

PIECE = 256 << 10
"""Bytes per call of torch in what is longer than a chunk: what one call leaves in the core's own cache, the next finds
there."""

SERIAL = (1 << 15) - 64
"""Elements below which torch starts no threads."""


class Pieces:
    """How long the calls of one operation are.

    Args:
        arena: The host's.
        operation: Under way.
        itemsize: Bytes of an element.
        chunk: Bytes that are reduced in one call, if they come alone.
    """

    __slots__ = ("_arena", "_most", "_piece")

    def __init__(self, arena: Arena, operation: Operation, itemsize: int, chunk: int = CHUNK) -> None:
        self._arena = arena
        self._piece, self._most = PIECE // itemsize, chunk // itemsize
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

    def cut(self, length: int, reduction: Reduction) -> list[slice]:
        """Cut so many elements into pieces: one piece where there are no more than a chunk holds."""
        if length <= self._most and not reduction.widens:
            return [slice(length)]
        step = self.step(reduction)
        return [slice(start, start + step) for start in range(0, length, step)]

    def fold(self, reduction: Reduction, sources: Sequence[torch.Tensor], out: torch.Tensor, *, finish: bool) -> None:
        """Reduce the sources, one of each member, into `out`, which may be one of them, piece by piece."""
        cuts = self.cut(out.numel(), reduction)
        if len(cuts) == 1:
            fold(self._arena, reduction, sources, out, finish=finish)
            return
        for piece in cuts:
            fold(self._arena, reduction, [source[piece] for source in sources], out[piece], finish=finish)


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
