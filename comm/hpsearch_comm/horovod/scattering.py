"""reducescatter: each rank gets its share of the reduced tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hpsearch_comm.horovod.compression import Compression, Compressor, check_compression
from hpsearch_comm.horovod.errors import HorovodInternalError
from hpsearch_comm.horovod.handles import start, synchronize
from hpsearch_comm.horovod.process_sets import ProcessSet, global_process_set
from hpsearch_comm.horovod.reductions import reduce_op
from hpsearch_comm.horovod.request import ReduceOp

__all__ = ["grouped_reducescatter", "grouped_reducescatter_async", "reducescatter", "reducescatter_async"]


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = ReduceOp.AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Reduce the ranks' tensors and divide the rows among them, asynchronously; see `reducescatter`."""
    return _start([tensor], name, op, process_set, prescale_factor, postscale_factor)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = ReduceOp.AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduce the ranks' tensors, and return this rank's share of the rows; differentiable.

    Args:
        tensor: Of the same shape and dtype on every rank. If the number of rows doesn't divide, the first ranks get one
            more.
        name: See `allreduce`.
        compression: How the tensor is compressed.
        op: Average, Sum, Min, Max or Product.
        process_set: The ranks.
        prescale_factor: Factor of the tensor before the reduction.
        postscale_factor: Factor of the result.
    """
    check_compression(compression)
    short, context = compression.compress(tensor)
    arguments = op, process_set, prescale_factor, postscale_factor, False
    (result,) = _Reducescatter.apply(name, *arguments, short)  # type: ignore[no-untyped-call]
    return compression.decompress(result, context)


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = ReduceOp.AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Reduce several tensors together and divide their rows, asynchronously; see `reducescatter`."""
    return _start(tensors, name, op, process_set, prescale_factor, postscale_factor, grouped=True)


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = ReduceOp.AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Reduce several tensors together, and return this rank's share of their rows; see `reducescatter`."""
    check_compression(compression)
    compressed = [compression.compress(tensor) for tensor in tensors]
    arguments = op, process_set, prescale_factor, postscale_factor, True
    results = _Reducescatter.apply(name, *arguments, *(short for short, _ in compressed))  # type: ignore[no-untyped-call]
    return [compression.decompress(result, context) for result, (_, context) in zip(results, compressed, strict=True)]


def _start(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    op: int,
    process_set: ProcessSet,
    prescale_factor: float,
    postscale_factor: float,
    *,
    grouped: bool = False,
) -> int:
    kind = reduce_op(op, None)
    if kind is ReduceOp.ADASUM:
        raise HorovodInternalError(
            "reducescatter takes op Average, Sum, Min, Max or Product, got Adasum: use allreduce"
        )
    return start(
        "reducescatter",
        tensors,
        name,
        process_set,
        grouped=grouped,
        op=kind,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
    )


class _Reducescatter(torch.autograd.Function):
    """The gradient of a sum is the gathered one times the number of ranks, as Horovod has it; that of a mean, as it is.

    It is the gradient of the mean of the ranks' losses in place of their sum.
    """

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
        grouped: bool,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.op, ctx.factor, ctx.process_set = reduce_op(op, None), prescale_factor * postscale_factor, process_set
        handle = _start(tensors, name, op, process_set, prescale_factor, postscale_factor, grouped=grouped)
        result = synchronize(handle)
        return tuple(result) if grouped else (result,)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        process_set: ProcessSet = ctx.process_set
        factor = ctx.factor * (len(process_set.ranks) if ctx.op is ReduceOp.SUM else 1)
        scaled = [gradient * factor for gradient in gradients]
        return *(None,) * 6, *synchronize(start("allgather", scaled, None, process_set, grouped=True))
