"""Collectives of one host through the memory that its ranks share: each rank reads what it needs where it lies.

A collective begins with a barrier, at which the ranks compare what they are doing and tell each other where their
tensors lie. There are two cases:

- All lie in one shared buffer (`Group.empty`). Then every rank reads its peers' values right there, and nothing is
  copied that isn't wanted elsewhere.
- Otherwise they go through memory that all ranks share anyway, in chunks that stay in the cores' caches: `pipeline`
  moves them through staging memory, which each rank writes for the others to read.

An allreduce chooses between several ways of either kind; see `direct_allreduce`. The others are its halves:
reduce_scatter stages values and reduces them, allgather and broadcast publish values and gather them. Each rank reads
what it gets once, and where it isn't in a shared buffer, writes what it gives once: n (p-1)/p bytes each of the n that
all parts have together, and for a broadcast n.

When one of these raises, the ranks are no longer in step: whoever called it ends the group.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hpsearch_comm.collectives.reduction import Reduction
from hpsearch_comm.collectives.shm.chunks import fold
from hpsearch_comm.collectives.shm.pipeline import Pipeline, meet, spans_of
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.shm.copying import copy
from hpsearch_comm.shm.shm_segment import ShmSegment

LITTLE = 64 << 10
"""Bytes up to which tensors are copied wherever they lie."""

Part = tuple[int, int]


def broadcast(shm: ShmSegment, operation: Operation, tensor: torch.Tensor, root: int) -> None:
    """Copy the root's tensor into everybody's; 1-D and contiguous, of the same length everywhere."""
    spans = [tensor if rank == root else tensor[:0] for rank in shm.members]
    _gather(shm, operation, spans, tensor, [0] * shm.size)


def allgather(shm: ShmSegment, operation: Operation, parts: Sequence[torch.Tensor]) -> None:
    """Copy each member's part to all.

    Args:
        shm: The host's.
        operation: Compared with the other ranks' before anything is used.
        parts: 1-D and contiguous: where the part of each member goes. The own one is filled already. The lengths may
            differ, but must be the same on every rank.
    """
    _gather(shm, operation, parts, parts[shm.index], [0] * shm.size)


def gather_parts(shm: ShmSegment, operation: Operation, tensor: torch.Tensor, parts: Sequence[Part]) -> None:
    """Copy part i of the i-th member's tensor into everybody's; there may be fewer parts than members."""
    itemsize = tensor.dtype.itemsize
    starts = [start * itemsize for start, _ in parts] + [0] * (shm.size - len(parts))
    _gather(shm, operation, spans_of(shm, tensor, parts), tensor, starts)


def reduce_scatter(
    shm: ShmSegment,
    operation: Operation,
    tensor: torch.Tensor,
    parts: Sequence[Part],
    reduction: Reduction,
    out: torch.Tensor,
) -> None:
    """Reduce the ranks' tensors; member i gets part i of the result.

    Args:
        shm: The host's.
        operation: Compared with the other ranks' before anything is used.
        tensor: 1-D, contiguous; stays as it is.
        parts: Part i is member i's, as (start, stop).
        reduction: Made for the tensor's dtype.
        out: 1-D, contiguous, as long as this rank's part. It may be that part of the tensor, but must not overlap it
            otherwise.
    """
    tensor, out = _computed(reduction, tensor), _computed(reduction, out)
    _reduce(shm, operation, tensor, parts, reduction, out, finish=True)


def reduce_parts(
    shm: ShmSegment, operation: Operation, tensor: torch.Tensor, parts: Sequence[Part], reduction: Reduction
) -> None:
    """Reduce part i of the tensors into the i-th member's, where it is left unfinished.

    There may be fewer parts than members. Until `gather_parts`, a member may change its own part only: where the
    tensors lie in a shared buffer, others may still be reading theirs.
    """
    tensor = _computed(reduction, tensor)
    start, stop = parts[shm.index] if shm.index < len(parts) else (0, 0)
    _reduce(shm, operation, tensor, parts, reduction, tensor[start:stop], finish=False)


def _gather(
    shm: ShmSegment,
    operation: Operation,
    spans: Sequence[torch.Tensor],
    mine: torch.Tensor,
    starts: Sequence[int],
) -> None:
    """Fill each member's span from that member's memory.

    Args:
        shm: The host's.
        operation: Compared with the other ranks'.
        spans: Where in this rank's memory the members' values go; the own ones are there.
        mine: The tensor whose place is told to the others.
        starts: Byte in a member's `mine` at which what it gives begins.
    """
    if shm.size == 1:
        return
    index = shm.index
    pipeline = Pipeline(shm, operation, spans)
    location = shm.find(mine) if sum(span.nbytes for span in spans) > LITTLE else None
    offsets = meet(shm, operation, location, lambda: pipeline.publish(0, spans[index]))
    if offsets is None:
        pipeline.run(
            lambda number: pipeline.publish(number, spans[index]), lambda number: pipeline.gather(number, spans)
        )
        return
    assert location is not None
    for member, span in enumerate(spans):
        if member != index:
            copy(span, location[0].part(member, offsets[member] + starts[member], span.numel(), span.dtype))
    shm.barrier.wait(operation)


def _reduce(
    shm: ShmSegment,
    operation: Operation,
    tensor: torch.Tensor,
    parts: Sequence[Part],
    reduction: Reduction,
    out: torch.Tensor,
    *,
    finish: bool,
) -> None:
    """Reduce this rank's part of everybody's tensor into `out`, which may be that part of its own tensor."""
    spans = spans_of(shm, tensor, parts)
    index = shm.index
    if shm.size == 1:
        copy(out, spans[0])
        return
    pipeline = Pipeline(shm, operation, spans)
    location = shm.find(tensor) if tensor.nbytes > LITTLE else None
    offsets = meet(shm, operation, location, lambda: pipeline.stage(0, spans))
    if offsets is None:
        pipeline.run(
            lambda number: pipeline.stage(number, spans),
            lambda number: pipeline.reduce(number, spans, reduction, pipeline.cut(out, number), finish=finish),
        )
        return
    assert location is not None
    start = parts[index][0] * tensor.dtype.itemsize if index < len(parts) else 0
    length, dtype = out.numel(), tensor.dtype
    sources = [location[0].part(member, offset + start, length, dtype) for member, offset in enumerate(offsets)]
    fold(shm, operation, reduction, sources, out, finish=finish)
    if finish:
        shm.barrier.wait(operation)


def _computed(reduction: Reduction, tensor: torch.Tensor) -> torch.Tensor:
    """View the tensor as what is computed with; partial results are that already."""
    return reduction.view(tensor) if tensor.dtype is reduction.dtype else tensor
