"""Batch normalization over the rows of all ranks of the job."""

from __future__ import annotations

import torch

from hpsearch_comm import data_parallel
from hpsearch_comm.data_parallel.sync_batch_norm import Exchange
from hpsearch_comm.horovod.gathering import allgather
from hpsearch_comm.horovod.reductions import allreduce_
from hpsearch_comm.horovod.request import ReduceOp


class SyncBatchNorm(data_parallel.SyncBatchNorm):
    """Normalizes each channel by the statistics of the whole batch, over all ranks.

    See `hpsearch_comm.SyncBatchNorm`, the same for a group. Ranks may have unequal numbers of rows.

    Args:
        num_features: Channels: the size of the input's dimension 1.
        eps: Added to the variance.
        momentum: Of the running statistics; None for the mean over all batches.
        affine: Whether there are a weight and a bias.
        track_running_stats: Whether there are running statistics.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__(num_features, _EXCHANGE, eps, momentum, affine, track_running_stats)


class _Job:
    """The ranks of the job, which find each other by name: one layer after another computes on every rank."""

    def allgather(self, tensor: torch.Tensor) -> torch.Tensor:
        return allgather(tensor, name="sync_batch_norm.statistics")

    def allreduce(self, tensor: torch.Tensor, op: str) -> torch.Tensor:
        return allreduce_(tensor, name="sync_batch_norm.gradients", op=ReduceOp[op.upper()])


class _OfTheJob(Exchange):
    """The one that all layers share, also those of a model that is read from a file."""

    def __reduce__(self) -> str:
        return "_EXCHANGE"


_EXCHANGE = _OfTheJob(_Job())
