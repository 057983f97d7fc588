"""Executes the operations that the ranks have agreed on.

Small tensors of the same dtype and operator are fused into one allreduce, because a small collective costs about the
same for any size.

Adasum adds gradients as far as they point in different directions, and averages them as far as they agree (Maleki et
al., "Scaling Distributed Training with Adaptive Summation", 2020, equation 4): two gradients a and b become

    (1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b

The gradients of more ranks are combined in a binary tree: neighbours first, then pairs of pairs. Before step d, blocks
of 2ᵈ ranks hold the same partial result. Each rank exchanges its partial result with the rank at distance 2ᵈ and
combines the two in the order of ranks, so that all ranks get the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch

from hpsearch_comm.errors import UsageError
from hpsearch_comm.group import Group
from hpsearch_comm.header import dtype_named
from hpsearch_comm.horovod.request import Entry, ReduceOp, Request
from hpsearch_comm.operations.contiguous import flat

TensorIndex = tuple[int, int]
"""The index of a request among the ready requests, and the index of a tensor in the request."""

SMALL_BYTES = 1 << 17
"""Size above which copying a tensor into a fused buffer takes longer than a separate collective."""


def plan_batches(requests: Sequence[Request], limit: int) -> list[list[TensorIndex]]:
    """Divide the tensors of several allreduces into batches, one per collective.

    Args:
        requests: The ready requests, the same in the same order on every rank.
        limit: Maximum bytes of a batch; 0 reduces each tensor alone.

    Returns:
        Batches of tensors with the same dtype, device type, operator and factors. Each tensor is in one batch.
    """
    batches: list[list[TensorIndex]] = []
    filling: dict[tuple[object, ...], tuple[list[TensorIndex], int]] = {}
    for number, request in enumerate(requests):
        for which, (dtype, shape) in enumerate(request.tensors):
            nbytes = prod(shape) * dtype_named(dtype).itemsize
            key = dtype, request.device, request.op, request.prescale_factor, request.postscale_factor
            if nbytes > min(SMALL_BYTES, limit) or request.op is ReduceOp.ADASUM:  # not fused
                batches.append([(number, which)])
                continue
            batch, filled = filling.get(key, ([], limit))
            if filled + nbytes > limit or not batch:
                batch, filled = [], 0
                batches.append(batch)
            batch.append((number, which))
            filling[key] = batch, filled + nbytes
    return batches


def adasum(group: Group, tensor: torch.Tensor) -> torch.Tensor:
    """Return the Adasum of the ranks' tensors; a collective.

    Args:
        group: The ranks; their number is a power of two.
        tensor: A floating-point tensor. float16 and bfloat16 are combined in float32 and rounded once.
    """
    mine = flat(tensor).to(torch.promote_types(tensor.dtype, torch.float32), copy=True)
    theirs = torch.empty_like(mine)
    distance = 1
    while distance < group.size:
        partner = group.rank ^ distance
        sending = group.send_async(mine, partner)
        group.recv(theirs, partner)
        sending.wait()
        mine = combine(mine, theirs) if group.rank < partner else combine(theirs, mine)
        distance *= 2
    return mine.to(tensor.dtype).view(tensor.shape)


def combine(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Combine two gradients (equation 4). If one is zero, the result is the other."""
    a, b = first.to(torch.float64), second.to(torch.float64)
    product, first_square, second_square = a.dot(b), a.dot(a), b.dot(b)
    first_share = 1.0 - float(product / (2 * first_square)) if first_square > 0 else 1.0
    second_share = 1.0 - float(product / (2 * second_square)) if second_square > 0 else 1.0
    return first_share * first + second_share * second


def stand_in(request: Request, device: torch.device) -> Entry:
    """Return the entry of zeros that a joined rank contributes to an allreduce."""
    zeros = [torch.zeros(shape, dtype=dtype_named(dtype), device=device) for dtype, shape in request.tensors]
    return Entry(request, zeros, in_place=zeros, grouped=True)


def execute(group: Group, entry: Entry) -> None:
    """Execute an operation other than allreduce, and finish its handle with the results."""
    try:
        _KINDS[entry.request.kind](group, entry)
    except UsageError as error:  # raised on all ranks alike, before anything is sent
        entry.handle.finish(error=error)


def reduce_all(group: Group, entries: Sequence[Entry], limit: int) -> None:
    """Execute allreduces, with small tensors fused, and finish their handles.

    Args:
        group: The ranks.
        entries: The operations, the same in the same order on every rank.
        limit: Maximum bytes of a fused batch.
    """
    outputs = [
        list(entry.sources) if entry.in_place is not None else [torch.empty_like(source) for source in entry.sources]
        for entry in entries
    ]
    errors: dict[int, UsageError] = {}
    for batch in plan_batches([entry.request for entry in entries], limit):
        request = entries[batch[0][0]].request
        sources = [entries[number].sources[which] for number, which in batch]
        targets = [outputs[number][which] for number, which in batch]
        try:
            _reduce_together(group, request, sources, targets)
        except UsageError as error:  # raised on all ranks alike, before anything is sent
            errors |= {number: error for number, _ in batch}
    for number, entry in enumerate(entries):
        if number in errors:
            entry.handle.finish(error=errors[number])
        else:
            entry.finish(outputs[number])


def _reduce_together(
    group: Group, request: Request, sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]
) -> None:
    if len(sources) == 1:
        _reduce(group, request, sources[0], targets[0])
        return
    together = torch.cat([source.reshape(-1) for source in sources])
    _reduce(group, request, together, together)
    parts = torch.split(together, [source.numel() for source in sources])
    for target, part in zip(targets, parts, strict=True):
        target.copy_(part.view(target.shape))


def _reduce(group: Group, request: Request, source: torch.Tensor, target: torch.Tensor) -> None:
    """Reduce `source` over the ranks into `target`, which may be the same tensor."""
    source = scale(source, request.prescale_factor)
    if request.op is ReduceOp.ADASUM:
        target.copy_(adasum(group, source.cpu()))  # point-to-point sends go through host memory
    else:
        group.allreduce(source, _group_op(request.op, source.dtype), out=target)
    _settle(target, request, group.size)


def _group_op(op: ReduceOp | None, dtype: torch.dtype) -> str:
    """Return the group's name of the operator. For an average of integers it is the sum, which `_settle` divides."""
    assert op is not None
    if op is ReduceOp.AVERAGE:
        return "mean" if _is_float(dtype) else "sum"
    return op.name.lower()


def _settle(target: torch.Tensor, request: Request, size: int) -> None:
    """Apply postscale_factor and the division for an average of integers to a reduced tensor, in place."""
    if request.postscale_factor != 1.0:
        target.copy_(scale(target, request.postscale_factor))
    if request.op is ReduceOp.AVERAGE and not _is_float(target.dtype):
        target.copy_(torch.div(target, size, rounding_mode="trunc"))


def scale(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """Multiply a tensor by a factor.

    Integers are multiplied in float64 and truncated, float16 and bfloat16 in float32, other dtypes in their own.
    """
    if factor == 1.0:
        return tensor
    if not _is_float(tensor.dtype):
        return (tensor.to(torch.float64) * factor).to(tensor.dtype)
    if tensor.dtype.itemsize < 4:
        return (tensor.to(torch.float32) * factor).to(tensor.dtype)
    return tensor * factor


def _is_float(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _allgather(group: Group, entry: Entry) -> None:
    entry.finish([group.allgather(source) for source in entry.sources])


def _broadcast(group: Group, entry: Entry) -> None:
    (source,), (root,) = entry.sources, entry.request.numbers
    if entry.in_place is not None:
        target = source
    elif group.rank == root:
        target = source.clone()
    else:
        target = torch.empty_like(source)
    entry.finish([group.broadcast(target, root)])


def _alltoall(group: Group, entry: Entry) -> None:
    (source,) = entry.sources
    assert entry.splits is not None
    splits = entry.splits.tolist()
    rows, coming = group.alltoall(source[: sum(splits)], splits)
    entry.finish([rows], (rows, torch.tensor(coming, dtype=entry.splits.dtype, device="cpu")))


def _reducescatter(group: Group, entry: Entry) -> None:
    results = []
    for source in entry.sources:
        scaled = scale(source, entry.request.prescale_factor)
        result = group.reduce_scatter(scaled, _group_op(entry.request.op, scaled.dtype))
        _settle(result, entry.request, group.size)
        results.append(result)
    entry.finish(results)


def _barrier(_group: Group, entry: Entry) -> None:
    entry.handle.finish()  # the negotiation has already waited for all ranks


_KINDS: dict[str, Callable[[Group, Entry], None]] = {
    "allgather": _allgather,
    "barrier": _barrier,
    "broadcast": _broadcast,
    "alltoall": _alltoall,
    "reducescatter": _reducescatter,
}
