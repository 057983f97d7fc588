"""allgather, broadcast and alltoall: what moves rows between ranks, and reduces nothing."""

from __future__ import annotations

import torch

from hpsearch_comm.horovod.handles import start, synchronize
from hpsearch_comm.horovod.process_sets import ProcessSet, global_process_set

__all__ = ["allgather", "allgather_async", "broadcast", "broadcast_", "broadcast_async", "broadcast_async_"]


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Gather the ranks' tensors, in the background; see `allgather`."""
    return start("allgather", [tensor], name, process_set)


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Give every rank the tensors of all, one behind the other along the first dimension.

    Args:
        tensor: First dimensions may differ between ranks; the others, and the dtype, may not.
        name: See `allreduce`.
        process_set: The ranks, whose order is that of the rows.
    """
    return synchronize(allgather_async(tensor, name, process_set))  # type: ignore[no-any-return]


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Copy the root's tensor into a new one on each rank, in the background; see `broadcast`."""
    return start("broadcast", [tensor], name, process_set, root_rank=root_rank)


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Copy the root's tensor into that of each rank, in the background; see `broadcast`."""
    return start("broadcast", [tensor], name, process_set, root_rank=root_rank, in_place=True)


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Copy the root's tensor into that of each rank; see `broadcast`."""
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))  # type: ignore[no-any-return]


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Give every rank the root's tensor.

    Args:
        tensor: Of the same shape and dtype on every rank.
        root_rank: The rank, counted in the job, whose tensor it is.
        name: See `allreduce`.
        process_set: The ranks.
    """
    return synchronize(broadcast_async(tensor, root_rank, name, process_set))  # type: ignore[no-any-return]
