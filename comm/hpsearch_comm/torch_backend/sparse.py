"""The sum of sparse tensors: their indices and values are gathered, and added up on every rank."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from hpsearch_comm.errors import UsageError
from hpsearch_comm.group import Group
from hpsearch_comm.torch_backend.arguments import given
from hpsearch_comm.torch_backend.plans import OperationPlan

__all__ = ["allreduce_sparse"]


def allreduce_sparse(group: Group, tensor: torch.Tensor, op: Any) -> list[OperationPlan]:
    """Add the ranks' tensors in COO layout, of one shape, up into everybody's.

    Raises:
        UsageError: It has another layout, or isn't to be added up.
    """
    if tensor.layout is not torch.sparse_coo or op != dist.ReduceOp.SUM:
        raise UsageError(f"all_reduce of sparse tensors adds up those in COO layout, got {op} of {tensor.layout}")
    own = tensor.detach().coalesce()
    shape = torch.tensor(own.shape, device="cpu").view(1, -1)
    gathered: list[torch.Tensor] = []

    def check_shapes(shapes: torch.Tensor) -> None:
        if (shapes != shape).any():
            raise UsageError(
                f"all_reduce takes sparse tensors of one shape, got {shapes.tolist()} on the ranks in turn"
            )

    def add_up(values: torch.Tensor) -> None:
        total = torch.sparse_coo_tensor(gathered.pop().t(), values, own.shape, device=own.device).coalesce()
        with torch.no_grad():  # a detached sparse tensor would get indices of its own
            tensor.copy_(total)

    return [
        OperationPlan("allgather", (shape,), [], check_shapes),
        OperationPlan("allgather", (own.indices().t(),), [], gathered.append),
        OperationPlan("allgather", (given("all_reduce", own.values()),), [tensor], add_up),
    ]
