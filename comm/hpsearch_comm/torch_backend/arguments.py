"""What torch passes to a collective, checked and put as this package sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from hpsearch_comm.errors import UsageError
from hpsearch_comm.operations.arguments import check_target, check_tensor

__all__ = ["check_like", "check_numel", "on_cpu", "only", "place", "reduction_name"]

_NAMES = (
    (dist.ReduceOp.SUM, "sum"),
    (dist.ReduceOp.AVG, "mean"),
    (dist.ReduceOp.PRODUCT, "product"),
    (dist.ReduceOp.MIN, "min"),
    (dist.ReduceOp.MAX, "max"),
    (dist.ReduceOp.BAND, "band"),
    (dist.ReduceOp.BOR, "bor"),
    (dist.ReduceOp.BXOR, "bxor"),
)


def reduction_name(reduce_op: Any, dtype: torch.dtype) -> str:
    """Give our name of an operator. The sum of bools is true where any is, as Gloo has it.

    Raises:
        UsageError: We have none.
    """
    name = next((name for op, name in _NAMES if reduce_op == op), None)
    if name is None:
        known = ", ".join(name.upper() for name in ("sum", "avg", "product", "min", "max", "band", "bor", "bxor"))
        asked = getattr(reduce_op, "op", reduce_op)
        raise UsageError(f"the hpsearch backend reduces with {known}, got {asked}: scale the tensor before the sum")
    return "max" if name == "sum" and dtype is torch.bool else name


def only(name: str, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Give the one tensor that a rank passes.

    Raises:
        UsageError: There are several, for several devices of one rank, or none.
    """
    if len(tensors) != 1:
        raise UsageError(f"{name} takes one tensor of each rank, got {len(tensors)}")
    return tensors[0]


def on_cpu(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Give the tensor's memory without its history, or one that it gets while the operation is under way.

    Raises:
        UsageError: It isn't a dense tensor on the CPU.
    """
    if not tensor.is_cpu:
        raise UsageError(
            f"{name} of the hpsearch backend takes tensors on the CPU, got one on {tensor.device}: for CUDA "
            "tensors use torch's nccl backend, or hpsearch_comm.DataParallel"
        )
    return check_tensor(name, tensor).detach()


def place(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Do as `on_cpu`, of a tensor into which a result is written.

    Raises:
        UsageError: No result can be written into it.
    """
    return check_target(f"{name}'s output", on_cpu(name, tensor))


def check_like(name: str, tensors: Sequence[torch.Tensor], like: torch.Tensor, count: int) -> None:
    """See that there are so many tensors, each of the shape and dtype of another.

    Raises:
        UsageError: One of them isn't, or there are more or fewer.
    """
    if len(tensors) != count:
        raise UsageError(f"{name} takes one tensor for each of the {count} ranks, got {len(tensors)}")
    for index, tensor in enumerate(tensors):
        if tensor.shape != like.shape or tensor.dtype is not like.dtype:
            raise UsageError(
                f"{name} takes tensors of one shape and dtype, here {like.dtype} {list(like.shape)}, got "
                f"{tensor.dtype} {list(tensor.shape)} for rank {index}"
            )


def check_numel(name: str, tensor: torch.Tensor, numel: int, dtype: torch.dtype) -> None:
    """See that a tensor has so many elements of this dtype.

    Raises:
        UsageError: It hasn't.
    """
    if tensor.numel() != numel or tensor.dtype is not dtype:
        raise UsageError(
            f"{name} takes {numel} elements of {dtype} here, got {tensor.numel()} of {tensor.dtype}: one of the two "
            "tensors must have exactly as many elements for each rank as the other one has"
        )
