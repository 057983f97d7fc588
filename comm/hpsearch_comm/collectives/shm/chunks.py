"""Reduce tensors in memory, in pieces of a suitable length for one call of torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hpsearch_comm.collectives.reduction import Reduction
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.shm.shm_segment import ShmSegment

_CACHED = 1 << 20
"""Bytes of all members together per call of torch: they fit in the core's own cache, where the next call finds them."""

_LEAST = 128 << 10
"""Minimum bytes of one member per call of torch: with fewer, the overhead of the call dominates."""

_VECTOR = 64
"""Pieces have a multiple of this many elements: torch makes different NaNs of elements that don't fill a vector."""

SERIAL = (1 << 15) - _VECTOR
"""Elements below which torch starts no threads."""


def piece_length(shm: ShmSegment, operation: Operation, reduction: Reduction, nbytes: int | None = None) -> int:
    """Return how many elements one call of torch reduces.

    Args:
        shm: The host's shared memory.
        operation: The running operation.
        reduction: The reduction.
        nbytes: Bytes of a piece for one thread, in the dtype in which it is summed. None for pieces that are reduced
            over all members, one member after the other.
    """
    length = (nbytes or max(_CACHED // shm.size, _LEAST)) // reduction.accumulate.itemsize // _VECTOR * _VECTOR
    threads = torch.get_num_threads()
    if threads == 1:
        return length
    # torch starts its own threads for long tensors. They help if there are cores for the threads of all ranks, but not
    # in a background thread, where they would be a second set of threads.
    return length * threads if operation.spin and threads * shm.size <= shm.cores else min(length, SERIAL)


def fold(
    shm: ShmSegment,
    operation: Operation,
    reduction: Reduction,
    sources: Sequence[torch.Tensor],
    out: torch.Tensor,
    *,
    finish: bool,
) -> None:
    """Reduce the sources in order, piece by piece.

    Args:
        shm: The host's shared memory; its scratch memory holds partial results.
        operation: The running operation.
        reduction: The reduction.
        sources: One tensor of each member.
        out: The tensor for the result. It may be the first source, or this rank's own.
        finish: Whether to finish the result.
    """
    length = piece_length(shm, operation, reduction)
    if out.numel() <= length:
        fold_piece(shm, reduction, sources, out, finish=finish)
        return
    for start in range(0, out.numel(), length):
        piece = slice(start, start + length)
        fold_piece(shm, reduction, [source[piece] for source in sources], out[piece], finish=finish)


def fold_piece(
    shm: ShmSegment, reduction: Reduction, sources: Sequence[torch.Tensor], out: torch.Tensor, *, finish: bool
) -> None:
    """Reduce sources of at most one piece, in order. The arguments are the same as for `fold`."""
    if out.dtype is not reduction.accumulate:
        total = shm.scratch(reduction.accumulate, out.numel())
        total.copy_(sources[0])
        remaining = sources[1:]
    else:
        # `out` may be this rank's own source: until that has been read, the sum is kept in scratch memory.
        index = shm.index
        total = out if index < 2 else shm.scratch(out.dtype, out.numel())
        reduction.into(sources[0], sources[1], total)
        for theirs in sources[2:index]:
            reduction.combine(total, theirs)
        if index >= 2:
            reduction.into(total, sources[index], out)
            total = out
        remaining = sources[max(index + 1, 2) :]
    for theirs in remaining:
        reduction.combine(total, theirs)
    if finish:
        reduction.finish(total, len(sources))
    if total is not out:
        out.copy_(total)
