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

    `hpsearch_comm.SyncBatchNorm` does the same for a group. The number of rows may differ between ranks.

    Args:
        num_features: Number of channels: the size of the input's dimension 1.
        eps: Added to the variance.
        momentum: Momentum of the running statistics; None for the mean over all batches.
        affine: Whether the layer has a weight and a bias.
        track_running_stats: Whether the layer has running statistics.
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
    """The ranks of the job. All layers can use the same names, because layers run in sequence on every rank."""

    def allgather(self, tensor: torch.Tensor) -> torch.Tensor:
        return allgather(tensor, name="sync_batch_norm.statistics")

    def allreduce(self, tensor: torch.Tensor, op: str) -> torch.Tensor:
        return allreduce_(tensor, name="sync_batch_norm.gradients", op=ReduceOp[op.upper()])  # type: ignore[no-any-return]


class _OfTheJob(Exchange):
    """The exchange that all layers share. Unpickling returns the same object."""

    def __reduce__(self) -> str:
        return "_EXCHANGE"


_EXCHANGE = _OfTheJob(_Job())
