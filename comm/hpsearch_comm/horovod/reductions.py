"""allreduce and reducescatter: one tensor or several, in place or not, blocking or asynchronous."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from hpsearch_comm.horovod.compression import Compression, Compressor, check_compression
from hpsearch_comm.horovod.errors import HorovodInternalError, MissingError
from hpsearch_comm.horovod.gathering import allgather_async
from hpsearch_comm.horovod.handles import in_place, start, synchronize
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
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "reducescatter",
    "reducescatter_async",
    "sparse_allreduce_async",
]


class ReductionArguments(NamedTuple):
    """The arguments of a reduction.

    Attributes:
        kind: allreduce or reducescatter.
    """

    kind: str
    op: ReduceOp
    prescale_factor: float
    postscale_factor: float
    process_set: ProcessSet

    def start(
        self, tensors: Sequence[torch.Tensor], name: str | None, *, in_place: bool = False, grouped: bool = False
    ) -> int:
        if self.op is ReduceOp.ADASUM:
            self._check_adasum(tensors)
        return start(tensors=tensors, name=name, in_place=in_place, grouped=grouped, **self._asdict())

    def start_compressed(
        self, compression: type[Compressor], tensors: Sequence[torch.Tensor], name: str, *, grouped: bool = False
    ) -> Callable[[], list[torch.Tensor]]:
        """Start to reduce the compressed tensors; return a function that waits for the decompressed results."""
        compressed = [compression.compress(tensor) for tensor in tensors]
        handle = self.start([short for short, _ in compressed], name, grouped=grouped)

        def results() -> list[torch.Tensor]:
            result = synchronize(handle)
            pairs = zip(result if grouped else [result], compressed, strict=True)
            return [compression.decompress(reduced, context) for reduced, (_, context) in pairs]

        return results

    def compute(
        self, tensors: Sequence[torch.Tensor], name: str | None, compression: type[Compressor], *, grouped: bool = False
    ) -> list[torch.Tensor]:
        """Reduce the tensors, and return the results; differentiable."""
        check_compression(compression)
        compressed = [compression.compress(tensor) for tensor in tensors]
        results = _Reduce.apply(self, name, grouped, *(short for short, _ in compressed))  # type: ignore[no-untyped-call]
        return [
            compression.decompress(result, context) for result, (_, context) in zip(results, compressed, strict=True)
        ]

    def _check_adasum(self, tensors: Sequence[torch.Tensor]) -> None:
        size = len(self.process_set.ranks)
        if self.kind == "reducescatter":
            raise HorovodInternalError(
                "reducescatter takes op Average, Sum, Min, Max or Product, got Adasum: use allreduce"
            )
        if size & (size - 1):
            raise MissingError(f"Adasum takes 1, 2, 4, 8 or another power of two ranks, got {size}: use op=hvd.Average")
        for tensor in tensors:
            if not tensor.dtype.is_floating_point:
                raise ValueError(f"Adasum takes tensors of a floating dtype, got {tensor.dtype}: use op=hvd.Sum")


class _Reduce(torch.autograd.Function):
    """The gradient of an allreduce is the same reduction of the gradients.

    The gradient of a reducescatter is the allgather of the gradients. With op Sum it is multiplied by the number of
    ranks, as in Horovod. In both cases it is the gradient of the ranks' summed losses times the number of ranks.
    """

    @staticmethod
    def forward(
        ctx: Any, reduction: ReductionArguments, name: str | None, grouped: bool, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.reduction, ctx.grouped = reduction, grouped
        result = synchronize(reduction.start(tensors, name, grouped=grouped))
        return result if grouped else (result,)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        reduction: ReductionArguments = ctx.reduction
        if reduction.kind == "allreduce":
            return None, None, None, *_Reduce.forward(ctx, reduction, None, ctx.grouped, *gradients)
        process_set = reduction.process_set
        factor = reduction.prescale_factor * reduction.postscale_factor
        if reduction.op is ReduceOp.SUM:
            factor *= len(process_set.ranks)
        scaled = [gradient * factor for gradient in gradients]
        return None, None, None, *synchronize(start("allgather", scaled, None, process_set, grouped=True))


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    in_place: bool = False,
) -> int:
    """Reduce the ranks' tensors into new ones, or in place, asynchronously; see `allreduce`."""
    reduction = ReductionArguments("allreduce", reduce_op(op, average), prescale_factor, postscale_factor, process_set)
    return reduction.start([tensor], name, in_place=in_place)


allreduce_async_ = in_place("allreduce_async_", allreduce_async)
allreduce_ = in_place("allreduce_", allreduce_async, blocking=True)


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
        average: Deprecated; True means op=Average, False means op=Sum.
        name: The name by which the ranks match calls. Without names, the n-th calls of all ranks match.
        compression: How the tensor is compressed.
        op: Average (default), Sum, Min, Max, Product or Adasum.
        prescale_factor: Factor of the tensor before the reduction.
        postscale_factor: Factor of the result.
        process_set: The ranks.

    Raises:
        HorovodInternalError: The ranks disagree, and the job continues; or a rank is gone, and the job has ended.
        ValueError: An argument is invalid.
    """
    reduction = ReductionArguments("allreduce", reduce_op(op, average), prescale_factor, postscale_factor, process_set)
    return reduction.compute([tensor], name, compression)[0]


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    in_place: bool = False,
) -> int:
    """Reduce several tensors together, asynchronously; see `allreduce`."""
    reduction = ReductionArguments("allreduce", reduce_op(op, average), prescale_factor, postscale_factor, process_set)
    return reduction.start(tensors, name, in_place=in_place, grouped=True)


grouped_allreduce_async_ = in_place("grouped_allreduce_async_", grouped_allreduce_async)
grouped_allreduce_ = in_place("grouped_allreduce_", grouped_allreduce_async, blocking=True)


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
    reduction = ReductionArguments("allreduce", reduce_op(op, average), prescale_factor, postscale_factor, process_set)
    return reduction.compute(tensors, name, compression, grouped=True)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = ReduceOp.AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Reduce the ranks' tensors and divide the rows among them, asynchronously; see `reducescatter`."""
    reduction = ReductionArguments("reducescatter", reduce_op(op, None), prescale_factor, postscale_factor, process_set)
    return reduction.start([tensor], name)


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
        tensor: Of the same shape and dtype on every rank. If the number of rows is not divisible by the number of
            ranks, the first ranks get one more row.
        name: See `allreduce`.
        compression: How the tensor is compressed.
        op: Average, Sum, Min, Max or Product.
        process_set: The ranks.
        prescale_factor: Factor of the tensor before the reduction.
        postscale_factor: Factor of the result.
    """
    reduction = ReductionArguments("reducescatter", reduce_op(op, None), prescale_factor, postscale_factor, process_set)
    return reduction.compute([tensor], name, compression)[0]


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = ReduceOp.AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Reduce several tensors together and divide their rows, asynchronously; see `reducescatter`."""
    reduction = ReductionArguments("reducescatter", reduce_op(op, None), prescale_factor, postscale_factor, process_set)
    return reduction.start(tensors, name, grouped=True)


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
    reduction = ReductionArguments("reducescatter", reduce_op(op, None), prescale_factor, postscale_factor, process_set)
    return reduction.compute(tensors, name, compression, grouped=True)


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
    """Return the operator for the argument `op` or the deprecated `average`.

    Raises:
        ValueError: Both are given, or the value is invalid.
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
