"""The reduction of tensors in memory, in calls of torch that are neither too long nor too short."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hpsearch_comm.collectives.reduction import Reduction
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.shm.shm_segment import ShmSegment
from hpsearch_comm.shm.staging import CHUNK

__all__ = ["SERIAL", "Chunks", "fold"]

PIECE = 256 << 10
"""Bytes per call of torch in what is longer than a chunk: what one call leaves in the core's own cache, the next finds
there."""

SERIAL = (1 << 15) - 64
"""Elements below which torch starts no threads."""


class Chunks:
    """How long the calls of one operation are.

    Args:
        shm: The host's.
        operation: Under way.
        itemsize: Bytes of an element.
        chunk: Bytes that are reduced in one call, if they come alone.
    """

    __slots__ = ("_most", "_piece", "_shm")

    def __init__(self, shm: ShmSegment, operation: Operation, itemsize: int, chunk: int = CHUNK) -> None:
        self._shm = shm
        self._piece, self._most = PIECE // itemsize, chunk // itemsize
        threads = torch.get_num_threads()
        if threads > 1:
            # torch starts threads of its own for long tensors. They help where there are cores for all ranks' threads,
            # but not from a thread beside the caller's, where they would be a second set of them.
            if operation.spin and threads * shm.size <= shm.cores:
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
            fold(self._shm, reduction, sources, out, finish=finish)
            return
        for piece in cuts:
            fold(self._shm, reduction, [source[piece] for source in sources], out[piece], finish=finish)


def fold(
    shm: ShmSegment, reduction: Reduction, sources: Sequence[torch.Tensor], out: torch.Tensor, *, finish: bool
) -> None:
    """Reduce the sources in order.

    Args:
        shm: Gives memory for partial results.
        reduction: The operator.
        sources: One of each member.
        out: Where the result goes. It may be the first source, or this rank's own.
        finish: Whether the result is final.
    """
    if out.dtype is not reduction.accumulate:
        total = shm.scratch(reduction.accumulate, out.numel())
        total.copy_(sources[0])
        rest = sources[1:]
    else:
        # What lies in `out` may be this rank's own source: until its turn has come, the sum grows elsewhere.
        own = shm.index
        total = out if own < 2 else shm.scratch(out.dtype, out.numel())
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
