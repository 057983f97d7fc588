"""What torch passes to a collective, checked and put as this package sees it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from hpsearch_comm.errors import UsageError
from hpsearch_comm.operations.arguments import check_target, check_tensor

__all__ = ["check_devices", "check_input", "check_like", "check_numel", "check_output", "only", "reduction_name"]

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
    """Return our name of an operator. The sum of bools is true where any is, as Gloo has it.

    Raises:
        UsageError: We have none.
    """
    name = next((name for op, name in _NAMES if reduce_op == op), None)
    if name is None:
        names = ", ".join(name.upper() for name in ("sum", "avg", "product", "min", "max", "band", "bor", "bxor"))
        requested = getattr(reduce_op, "op", reduce_op)
        raise UsageError(f"the hpsearch backend reduces with {names}, got {requested}: scale the tensor before the sum")
    return "max" if name == "sum" and dtype is torch.bool else name


def only(name: str, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the one tensor that a rank passes.

    Raises:
        UsageError: There are several, for several devices of one rank, or none.
    """
    if len(tensors) != 1:
        raise UsageError(f"{name} takes one tensor of each rank, got {len(tensors)}")
    return tensors[0]


def check_input(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's memory without its history, or one that it gets while the operation is under way.

    Raises:
        UsageError: It isn't a dense tensor on the CPU or on a CUDA device.
    """
    if not tensor.is_cpu and not tensor.is_cuda:
        raise UsageError(
            f"{name} of the hpsearch backend takes tensors on the CPU or on a CUDA device, got one on "
            f"{tensor.device}: move it with tensor.cpu(), and the result back with tensor.to(device)"
        )
    return check_tensor(name, tensor).detach()


def check_output(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Do as `check_input`, of a tensor into which a result is written.

    Raises:
        UsageError: No result can be written into it.
    """
    return check_target(f"{name}'s output", check_input(name, tensor))


def check_devices(name: str, tensors: Iterable[torch.Tensor]) -> None:
    """Check that all tensors of an operation are on one device.

    Raises:
        UsageError: They aren't.
    """
    devices = {tensor.device for tensor in tensors}
    if len(devices) > 1:
        raise UsageError(
            f"{name} takes tensors on one device, got some on {' and '.join(sorted(map(str, devices)))}: move them "
            "with tensor.to(device)"
        )


def check_like(name: str, tensors: Sequence[torch.Tensor], like: torch.Tensor, count: int) -> None:
    """Check the number of tensors, and that each has the shape, dtype and device of `like`.

    Raises:
        UsageError: One differs, or there are more or fewer.
    """
    if len(tensors) != count:
        raise UsageError(f"{name} takes one tensor for each of the {count} ranks, got {len(tensors)}")
    for index, tensor in enumerate(tensors):
        if tensor.shape != like.shape or tensor.dtype is not like.dtype:
            raise UsageError(
                f"{name} takes tensors of one shape and dtype, here {like.dtype} {list(like.shape)}, got "
                f"{tensor.dtype} {list(tensor.shape)} for rank {index}"
            )
    check_devices(name, (like, *tensors))


def check_numel(name: str, tensor: torch.Tensor, numel: int, like: torch.Tensor) -> None:
    """Check that a tensor has `numel` elements, and the dtype and device of `like`.

    Raises:
        UsageError: It differs.
    """
    check_devices(name, (tensor, like))
    if tensor.numel() != numel or tensor.dtype is not like.dtype:
        raise UsageError(
            f"{name} takes {numel} elements of {like.dtype} here, got {tensor.numel()} of {tensor.dtype}: one of "
            "the two tensors must have exactly as many elements for each rank as the other one has"
        )
