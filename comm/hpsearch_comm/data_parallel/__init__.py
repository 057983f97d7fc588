"""Data parallelism: gradients are averaged over the ranks during the backward pass."""

from hpsearch_comm.data_parallel.broadcast import broadcast_optimizer_state, broadcast_parameters
from hpsearch_comm.data_parallel.data_parallel import DataParallel
from hpsearch_comm.data_parallel.optimizer import DistributedOptimizer
from hpsearch_comm.data_parallel.sync_batch_norm import SyncBatchNorm, convert_sync_batchnorm

__all__ = [
    "DataParallel",
    "DistributedOptimizer",
    "SyncBatchNorm",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "convert_sync_batchnorm",
]
