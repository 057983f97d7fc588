"""allgather, broadcast and alltoall: operations that move rows and reduce nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hpsearch_comm.horovod.handles import in_place, start, synchronize
from hpsearch_comm.horovod.process_sets import ProcessSet, global_process_set
from hpsearch_comm.horovod.request import ReduceOp
from hpsearch_comm.operations.arguments import check_splits

__all__ = [
    "allgather",
    "allgather_async",
    "alltoall",
    "alltoall_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
]


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Gather the ranks' tensors asynchronously; see `allgather`."""
    return start("allgather", [tensor], name, process_set)


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Return the tensors of all ranks, concatenated along the first dimension; differentiable.

    Args:
        tensor: First dimensions may differ between ranks; other dimensions and the dtype may not.
        name: See `allreduce`.
        process_set: The ranks, in whose order the rows are concatenated.
    """
    (result,) = _Allgather.apply(name, process_set, False, tensor)  # type: ignore[no-untyped-call]
    return result  # type: ignore[no-any-return]


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Gather several tensors together, asynchronously; see `allgather`."""
    return start("allgather", tensors, name, process_set, grouped=True)


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """Gather several tensors together; see `allgather`."""
    return list(_Allgather.apply(name, process_set, True, *tensors))  # type: ignore[no-untyped-call]


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    *,
    in_place: bool = False,
) -> int:
    """Copy the root's tensor into a new one on each rank, or in place, asynchronously; see `broadcast`."""
    return start("broadcast", [tensor], name, process_set, root_rank=root_rank, in_place=in_place)


broadcast_async_ = in_place("broadcast_async_", broadcast_async)
broadcast_ = in_place("broadcast_", broadcast_async, blocking=True)


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Return the root's tensor on every rank; differentiable.

    Args:
        tensor: Of the same shape and dtype on every rank.
        root_rank: The rank in the job whose tensor is sent.
        name: See `allreduce`.
        process_set: The ranks.
    """
    return _Broadcast.apply(tensor, root_rank, name, process_set)  # type: ignore[no-any-return, no-untyped-call]


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Send rows to each rank, asynchronously; see `alltoall`.

    The result is always a pair of the received rows and their number from each rank, even without `splits`.
    """
    dtype = splits.dtype if isinstance(splits, torch.Tensor) else torch.int32
    rows = tensor.shape[0] if isinstance(tensor, torch.Tensor) and tensor.dim() else 0

    def split(size: int) -> torch.Tensor:
        return torch.tensor(check_splits(rows, splits, size, all_rows=False), dtype=dtype, device="cpu")

    return start("alltoall", [tensor], name, process_set, splits=split)


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows to each rank and receive rows from each; differentiable.

    Args:
        tensor: All dimensions except the first, and the dtype, are the same on every rank.
        splits: Number of rows for each rank; remaining rows are not sent. None sends equal numbers.
        name: See `allreduce`.
        process_set: The ranks.

    Returns:
        The received rows, in the order of ranks. With `splits`, a pair: the rows, and their number from each rank.
    """
    rows, coming = _Alltoall.apply(tensor, splits, name, process_set)  # type: ignore[no-untyped-call]
    return rows if splits is None else (rows, coming)


class _Allgather(torch.autograd.Function):
    """The gradient is the mean over the ranks of the gradients of this rank's rows."""

    @staticmethod
    def forward(
        ctx: Any, name: str | None, process_set: ProcessSet, grouped: bool, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.rows = [tensor.shape[0] if tensor.dim() else 0 for tensor in tensors]
        ctx.process_set = process_set
        result = synchronize(start("allgather", tensors, name, process_set, grouped=grouped))
        return tuple(result) if grouped else (result,)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        process_set: ProcessSet = ctx.process_set
        means = start("allreduce", gradients, None, process_set, grouped=True, op=ReduceOp.AVERAGE)
        counts = synchronize(allgather_async(torch.tensor([ctx.rows], device="cpu"), None, process_set))
        starts = counts[: process_set.rank()].sum(0).tolist()
        own_gradients = [
            mean.narrow(0, start, rows) for mean, start, rows in zip(synchronize(means), starts, ctx.rows, strict=True)
        ]
        return None, None, None, *own_gradients


class _Broadcast(torch.autograd.Function):
    """The root's gradient is the mean of all ranks' gradients. The gradient of other ranks is zero."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        ctx.root_rank, ctx.process_set = root_rank, process_set
        return synchronize(broadcast_async(tensor, root_rank, name, process_set))  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        process_set: ProcessSet = ctx.process_set
        mean = synchronize(start("allreduce", gradients, None, process_set, op=ReduceOp.AVERAGE))
        at_root = process_set.rank() == process_set.ranks.index(ctx.root_rank)
        return mean if at_root else torch.zeros_like(mean), None, None, None


class _Alltoall(torch.autograd.Function):
    """The gradient of each row is sent back to the rank that sent the row."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        splits: torch.Tensor | Sequence[int] | None,
        name: str | None,
        process_set: ProcessSet,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, coming = synchronize(alltoall_async(tensor, splits, name, process_set))
        ctx.coming, ctx.shape, ctx.process_set = coming, tensor.shape, process_set
        ctx.mark_non_differentiable(coming)
        return rows, coming

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        back, _ = synchronize(alltoall_async(gradients[0], ctx.coming, None, ctx.process_set))
        gradient = back.new_zeros(ctx.shape)  # rows that were not sent have gradient zero
        gradient[: len(back)] = back
        return gradient, None, None, None
