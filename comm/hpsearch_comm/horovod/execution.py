"""Carries out on a group what the ranks have agreed on."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hpsearch_comm.group import Group
from hpsearch_comm.header import dtype_named
from hpsearch_comm.horovod.entry import Entry
from hpsearch_comm.horovod.request import ReduceOp, Request

__all__ = ["carry_out", "stand_in"]

_NAMES = {ReduceOp.SUM: "sum", ReduceOp.MIN: "min", ReduceOp.MAX: "max", ReduceOp.PRODUCT: "product"}


def stand_in(request: Request) -> Entry:
    """Give the zeros that a rank which has joined contributes."""
    zeros = [torch.zeros(shape, dtype=dtype_named(dtype)) for dtype, shape in request.tensors]
    return Entry(request, zeros, in_place=zeros, grouped=True)


def carry_out(group: Group, entry: Entry) -> None:
    """Carry an operation out, and give its results to whoever waits for them."""
    _KINDS[entry.request.kind](group, entry)


def _allreduce(group: Group, entry: Entry) -> None:
    results = []
    for source in entry.sources:
        output = torch.empty_like(source) if entry.in_place is None else source
        reduce(group, entry.request, source, output)
        results.append(output)
    entry.finish(results)


def reduce(group: Group, request: Request, source: torch.Tensor, output: torch.Tensor) -> None:
    """Reduce one tensor over the ranks into `output`, which may be the tensor itself."""
    source = scale(source, request.prescale_factor)
    group.allreduce(source, group_op(request.op, source.dtype), out=output)
    settle(output, request, group.size)


def group_op(op: ReduceOp | None, dtype: torch.dtype) -> str:
    """Name the group's operator. Integers are added, and divided by `settle`."""
    if op is ReduceOp.AVERAGE:
        return "mean" if dtype.is_floating_point or dtype.is_complex else "sum"
    assert op is not None
    return _NAMES[op]


def settle(output: torch.Tensor, request: Request, size: int) -> None:
    """Make what the group has reduced the result, in place: postscale_factor, and the average of integers."""
    if request.postscale_factor != 1.0:
        output.copy_(scale(output, request.postscale_factor))
    if request.op is ReduceOp.AVERAGE and group_op(request.op, output.dtype) == "sum":
        output.copy_(torch.div(output, size, rounding_mode="floor"))


def scale(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """Multiply by a factor: integers in float64, cut off towards zero, short floats in float32, others as they are."""
    if factor == 1.0:
        return tensor
    if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
        return (tensor.to(torch.float64) * factor).to(tensor.dtype)
    if tensor.dtype.itemsize < 4:
        return (tensor.to(torch.float32) * factor).to(tensor.dtype)
    return tensor * factor


def _allgather(group: Group, entry: Entry) -> None:
    entry.finish([group.allgather(source) for source in entry.sources])


def _broadcast(group: Group, entry: Entry) -> None:
    (source,), (root,) = entry.sources, entry.request.numbers
    if entry.in_place is not None:
        output = source
    elif group.rank == root:
        output = source.clone()
    else:
        output = torch.empty_like(source)
    entry.finish([group.broadcast(output, root)])


def _alltoall(group: Group, entry: Entry) -> None:
    (source,) = entry.sources
    splits = [source.shape[0] // group.size] * group.size if entry.splits is None else entry.splits
    rows, coming = group.alltoall(source, splits)
    entry.handle.finish((rows, torch.tensor(coming, dtype=torch.int32)))


def _reducescatter(group: Group, entry: Entry) -> None:
    results = []
    for source in entry.sources:
        source = scale(source, entry.request.prescale_factor)
        output = group.reduce_scatter(source, group_op(entry.request.op, source.dtype))
        settle(output, entry.request, group.size)
        results.append(output)
    entry.finish(results)


def _barrier(group: Group, entry: Entry) -> None:
    entry.handle.finish()  # that all have come is what the negotiation has found


_KINDS: dict[str, Callable[[Group, Entry], None]] = {
    "allreduce": _allreduce,
    "allgather": _allgather,
    "broadcast": _broadcast,
    "alltoall": _alltoall,
    "reducescatter": _reducescatter,
    "barrier": _barrier,
}
