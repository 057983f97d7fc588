"""Collectives within one host through shared memory: each rank reads the values that it needs directly.

A collective starts with a barrier, at which the ranks compare their operations and exchange the locations of their
tensors. There are two cases:

- All tensors are in one shared buffer (`Group.empty`). Then every rank reads its peers' values directly from it. There
  are no further copies.
- Otherwise the values are copied through staging memory, which each rank writes and the others read, in chunks that
  stay in the cores' caches: see `pipeline`.

Allreduce has several algorithms for each case; see `direct_allreduce`. The other collectives are halves of it:
reduce_scatter stages and reduces values, allgather and broadcast publish and gather them. Each rank reads its received
values once. If its tensor isn't in a shared buffer, it writes its sent values once. Of n bytes in all parts together
these are n (p-1)/p bytes each, and n for a broadcast.

If one of these functions raises an error, the ranks are out of step: the caller must end the group.
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
"""Bytes up to which tensors are always copied, even in a shared buffer."""

Part = tuple[int, int]


def broadcast(shm: ShmSegment, operation: Operation, tensor: torch.Tensor, root: int) -> None:
    """Copy the root's tensor to all ranks, in place. Tensors are 1-D, contiguous, and of equal length on all ranks."""
    spans = [tensor if rank == root else tensor[:0] for rank in shm.members]
    _gather(shm, operation, spans, tensor, [0] * shm.size)


def allgather(shm: ShmSegment, operation: Operation, parts: Sequence[torch.Tensor]) -> None:
    """Copy each member's part to all members.

    Args:
        shm: The host's shared memory.
        operation: Compared with the other ranks' operations before any data is used.
        parts: The tensor for each member's part, 1-D and contiguous. This rank's own part is already filled. The
            lengths may differ between members, but must be the same on every rank.
    """
    _gather(shm, operation, parts, parts[shm.index], [0] * shm.size)


def gather_parts(shm: ShmSegment, operation: Operation, tensor: torch.Tensor, parts: Sequence[Part]) -> None:
    """Copy part i of the i-th member's tensor to all members. There may be fewer parts than members."""
    itemsize = tensor.dtype.itemsize
    starts = [start * itemsize for start, _ in parts] + [0] * (shm.size - len(parts))
    _gather(shm, operation, spans_of(shm, tensor, parts), tensor, starts)


def alltoall(
    shm: ShmSegment,
    operation: Operation,
    sends: Sequence[torch.Tensor],
    receives: Sequence[torch.Tensor],
    longest: int,
) -> None:
    """Send a tensor to every member, and receive one from every member.

    Args:
        shm: The host's shared memory.
        operation: Compared with the other ranks' operations before any data is used.
        sends: The tensor for each member, 1-D and contiguous, of any length.
        receives: The tensor for the data of each member, as long as what that member sends. It must share no memory
            with `sends`.
        longest: Elements of the longest tensor that any rank sends.
    """
    copy(receives[shm.index], sends[shm.index])
    pipeline = Pipeline(shm, operation, sends, longest)
    meet(shm, operation, None, lambda: pipeline.stage(0, sends))
    pipeline.run(lambda number: pipeline.stage(number, sends), lambda number: pipeline.collect(number, receives))


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
        shm: The host's shared memory.
        operation: Compared with the other ranks' operations before any data is used.
        tensor: 1-D, contiguous; not changed.
        parts: (start, stop) of each member's part.
        reduction: The reduction for the tensor's dtype.
        out: 1-D, contiguous, as long as this rank's part. It may be exactly this part of the tensor, but must not
            overlap the tensor otherwise.
    """
    tensor, out = _computed(reduction, tensor), _computed(reduction, out)
    _reduce(shm, operation, tensor, parts, reduction, out, finish=True)


def reduce_parts(
    shm: ShmSegment, operation: Operation, tensor: torch.Tensor, parts: Sequence[Part], reduction: Reduction
) -> None:
    """Reduce part i of the tensors into the i-th member's tensor, without `finish`.

    There may be fewer parts than members. Until `gather_parts`, a member may only change its own part: if the tensors
    are in a shared buffer, other members may still be reading the other parts.
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
        shm: The host's shared memory.
        operation: Compared with the other ranks' operations.
        spans: The tensors in this rank's memory for the members' values; its own is already filled.
        mine: The tensor whose location is sent to the others.
        starts: For each member, the byte offset in its `mine` at which its values start.
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
    """Reduce this rank's part of all tensors into `out`, which may be this part of its own tensor."""
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
    """View the tensor as `reduction.computed`. Partial results are returned unchanged."""
    return reduction.view(tensor) if tensor.dtype is reduction.dtype else tensor
