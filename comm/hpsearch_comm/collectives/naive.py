"""Naive allreduce: every rank sends its tensor to every other rank, and adds up all tensors.

Each of p ranks sends its tensor of n bytes to the p-1 others, in one step: it sends and receives n(p-1) bytes. Then it
reduces all p tensors in the order of the ranks. The tests use this simple algorithm as the reference for the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hpsearch_comm.collectives.reduction import Reduction
from hpsearch_comm.failure.operation import Operation
from hpsearch_comm.transport.mesh import Mesh


def allreduce(
    mesh: Mesh, operation: Operation, members: Sequence[int], tensor: torch.Tensor, reduction: Reduction
) -> None:
    """Reduce a tensor over the members, in their order and in place. The arguments are those of `ring.allreduce`."""
    tensor = reduction.view(tensor)
    received_from = {member: torch.empty_like(tensor) for member in members if member != operation.rank}
    operation.step += 1
    mesh.exchange(
        operation,
        [(member, tensor) for member in received_from],
        [(member, received, None) for member, received in received_from.items()],
    )
    first, *remaining = [received_from.get(member, tensor) for member in members]
    result = first.to(reduction.accumulate, copy=True)
    for received in remaining:
        reduction.combine(result, received)
    reduction.finish(result, len(members))
    tensor.copy_(result)
