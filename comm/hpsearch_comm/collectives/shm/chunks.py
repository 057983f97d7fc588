"""The reduction of tensors in memory, in calls of torch that are neither too long nor too short."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hpsearch_comm.collectives.reduction import Reduction
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.shm.shm_segment import ShmSegment

_CACHED = 1 << 20
"""Bytes of all members together per call of torch: what one leaves in the core's own cache, the next finds there."""

_LEAST = 128 << 10
"""Bytes of one member per call of torch: with fewer the call itself takes longer than they do."""

_VECTOR = 64
"""Elements whose multiples calls of torch take: it makes other NaNs of the few that fill no vector of its own."""

SERIAL = (1 << 15) - _VECTOR
"""Elements below which torch starts no threads."""


def piece_length(shm: ShmSegment, operation: Operation, reduction: Reduction, nbytes: int | None = None) -> int:
    """Return how many elements one call of torch reduces.

    Args:
        shm: The host's.
        operation: Under way.
        reduction: The operator.
        nbytes: Of these elements, in the dtype in which they are summed up, for one thread. None where all members'
            are read in turn.
    """
    length = (nbytes or max(_CACHED // shm.size, _LEAST)) // reduction.accumulate.itemsize // _VECTOR * _VECTOR
    threads = torch.get_num_threads()
    if threads == 1:
        return length
    # torch starts threads of its own for long tensors. They help where there are cores for all ranks' threads, but not
    # from a thread beside the caller's, where they would be a second set of them.
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
        shm: Gives memory for partial results.
        operation: Under way.
        reduction: The operator.
        sources: One of each member.
        out: Where the result goes. It may be the first source, or this rank's own.
        finish: Whether the result is final.
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
    """Reduce the sources, no longer than a piece, in order; the rest as for `fold`."""
    if out.dtype is not reduction.accumulate:
        total = shm.scratch(reduction.accumulate, out.numel())
        total.copy_(sources[0])
        remaining = sources[1:]
    else:
        # What lies in `out` may be this rank's own source: until its turn has come, the sum grows elsewhere.
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
