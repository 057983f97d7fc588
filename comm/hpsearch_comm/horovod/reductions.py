"""Variants of allreduce: one tensor or several, in place or not, blocking or asynchronous."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hpsearch_comm.horovod.compression import Compression, Compressor, check_compression
from hpsearch_comm.horovod.errors import MissingError
from hpsearch_comm.horovod.gathering import allgather_async
from hpsearch_comm.horovod.handles import start, synchronize
from hpsearch_comm.horovod.process_sets import ProcessSet, global_process_set
from hpsearch_comm.horovod.request import ReduceOp

__all__ = [
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "sparse_allreduce_async",
]


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Reduce the ranks' tensors into a new one, asynchronously; see `allreduce`."""
    return _start([tensor], name, reduce_op(op, average), prescale_factor, postscale_factor, process_set)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Reduce the ranks' tensors in place, asynchronously; see `allreduce`."""
    return _start([tensor], name, reduce_op(op, average), prescale_factor, postscale_factor, process_set, in_place=True)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce the ranks' tensors in place; see `allreduce`."""
    op = reduce_op(op, average)
    handle = allreduce_async_(tensor, None, name, op, prescale_factor, postscale_factor, process_set)
    return synchronize(handle)  # type: ignore[no-any-return]


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce the ranks' tensors; differentiable.

    Args:
        tensor: Of the same shape and dtype on every rank.
        average: Deprecated: True for op=Average, False for op=Sum.
        name: By which the ranks match calls; without one, the n-th call on a rank matches the n-th on another.
        compression: How the tensor is compressed.
        op: Average (default), Sum, Min, Max, Product or Adasum.
        prescale_factor: Factor of the tensor before the reduction.
        postscale_factor: Factor of the result.
        process_set: The ranks.

    Raises:
        HorovodInternalError: The ranks disagree, and the job continues; or one is gone, and the job is over.
        ValueError: An argument can't be used.
    """
    check_compression(compression)
    short, context = compression.compress(tensor)
    op = reduce_op(op, average)
    (result,) = _Allreduce.apply(name, op, prescale_factor, postscale_factor, process_set, False, short)  # type: ignore[no-untyped-call]
    return compression.decompress(result, context)


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Reduce several tensors together, asynchronously; see `allreduce`."""
    return _start(tensors, name, reduce_op(op, average), prescale_factor, postscale_factor, process_set, grouped=True)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Reduce several tensors together, in place and asynchronously; see `allreduce`."""
    return _start(
        tensors,
        name,
        reduce_op(op, average),
        prescale_factor,
        postscale_factor,
        process_set,
        in_place=True,
        grouped=True,
    )


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> tuple[torch.Tensor, ...]:
    """Reduce several tensors together, in place; see `allreduce`."""
    op = reduce_op(op, average)
    handle = grouped_allreduce_async_(tensors, None, name, op, prescale_factor, postscale_factor, process_set)
    return synchronize(handle)  # type: ignore[no-any-return]


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduce several tensors together; see `allreduce`."""
    check_compression(compression)
    compressed = [compression.compress(tensor) for tensor in tensors]
    op = reduce_op(op, average)
    arguments = name, op, prescale_factor, postscale_factor, process_set, True
    results = _Allreduce.apply(*arguments, *(short for short, _ in compressed))  # type: ignore[no-untyped-call]
    return [compression.decompress(result, context) for result, (_, context) in zip(results, compressed, strict=True)]


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Sum or average the ranks' sparse tensors, asynchronously.

    Returns:
        A function that waits for the result and returns it, not coalesced: indices and values are gathered.

    Raises:
        ValueError: op is neither Sum nor Average, or the tensor isn't sparse.
    """
    kind = reduce_op(op, None)
    if kind not in (ReduceOp.SUM, ReduceOp.AVERAGE):
        raise ValueError(f"sparse tensors can be reduced with op Sum or Average, got {kind}: make it dense before")
    if not tensor.is_sparse:
        raise ValueError(f"hvd.sparse_allreduce_async takes a sparse tensor, got one of {tensor.layout}")
    shape = tensor.shape
    indices = allgather_async(
        tensor._indices().transpose(0, 1).contiguous(), name and f"{name}.indices", process_set=process_set
    )
    values = allgather_async(tensor._values(), name and f"{name}.values", process_set=process_set)

    def result() -> torch.Tensor:
        gathered = synchronize(values)
        coordinates = synchronize(indices).transpose(0, 1)
        if kind is ReduceOp.AVERAGE:
            gathered = gathered / len(process_set.ranks)
        return torch.sparse_coo_tensor(coordinates, gathered, shape, device=gathered.device)

    return result


def reduce_op(op: int | None, average: bool | None) -> ReduceOp:
    """Return the operator that is meant by `op` or the older `average`.

    Raises:
        ValueError: Both are given, or there is no such operator.
    """
    if average is not None:
        if op is not None:
            raise ValueError(f"pass op alone, which replaces average, got op={op} and average={average!r}")
        if not isinstance(average, bool):
            raise ValueError(f"average must be True or False, got {average!r}: name and op are given by their names")
        message = "average is deprecated in favour of op: pass op=hvd.Average or op=hvd.Sum"
        warnings.warn(message, DeprecationWarning, stacklevel=3)
        return ReduceOp.AVERAGE if average else ReduceOp.SUM
    try:
        return ReduceOp.AVERAGE if op is None else ReduceOp(op)
    except ValueError:
        kinds = ", ".join(f"hvd.{kind}" for kind in ReduceOp)
        raise ValueError(f"op must be one of {kinds}, got {op!r}") from None


def _start(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    op: ReduceOp,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    *,
    in_place: bool = False,
    grouped: bool = False,
) -> int:
    if op is ReduceOp.ADASUM:
        _check_adasum(tensors, len(process_set.ranks))
    return start(
        "allreduce",
        tensors,
        name,
        process_set,
        in_place=in_place,
        grouped=grouped,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )


def _check_adasum(tensors: Sequence[torch.Tensor], size: int) -> None:
    if size & (size - 1):
        raise MissingError(f"Adasum takes 1, 2, 4, 8 or another power of two ranks, got {size}: use op=hvd.Average")
    for tensor in tensors:
        if not tensor.dtype.is_floating_point:
            raise ValueError(f"Adasum takes tensors of a floating dtype, got {tensor.dtype}: use op=hvd.Sum")


class _Allreduce(torch.autograd.Function):
    """The gradient of a reduction is the same reduction of the gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: ReduceOp,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
        grouped: bool,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.arguments = op, prescale_factor, postscale_factor, process_set, grouped
        return _reduce(tensors, name, *ctx.arguments)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return (*(None,) * 6, *_reduce(gradients, None, *ctx.arguments))


def _reduce(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    op: ReduceOp,
    prescale_factor: float,
    postscale_factor: float,
    process_set: ProcessSet,
    grouped: bool,
) -> tuple[torch.Tensor, ...]:
    result = synchronize(_start(tensors, name, op, prescale_factor, postscale_factor, process_set, grouped=grouped))
    return result if grouped else (result,)
