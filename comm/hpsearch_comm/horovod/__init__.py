"""Horovod's PyTorch API over this package's groups: a script changes one import.

import hpsearch_comm.horovod as hvd     # was: import horovod.torch as hvd
"""

from __future__ import annotations

from hpsearch_comm.horovod import elastic
from hpsearch_comm.horovod.built import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from hpsearch_comm.horovod.compression import Compression
from hpsearch_comm.horovod.errors import HorovodInternalError, MissingError
from hpsearch_comm.horovod.gathering import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
)
from hpsearch_comm.horovod.handles import poll, synchronize
from hpsearch_comm.horovod.job import (
    cross_rank,
    cross_size,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    size,
)
from hpsearch_comm.horovod.lifetime import init, shutdown
from hpsearch_comm.horovod.missing import IN_HOROVOD, missing_from
from hpsearch_comm.horovod.objects import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from hpsearch_comm.horovod.optimizer import DistributedOptimizer
from hpsearch_comm.horovod.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from hpsearch_comm.horovod.reductions import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    sparse_allreduce_async,
)
from hpsearch_comm.horovod.request import ReduceOp
from hpsearch_comm.horovod.scattering import (
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from hpsearch_comm.horovod.sync_batch_norm import SyncBatchNorm
from hpsearch_comm.horovod.timeline import start_timeline, stop_timeline
from hpsearch_comm.horovod.waiting import barrier, join

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "MissingError",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNorm",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]

Average, Sum, Adasum, Min, Max, Product = ReduceOp

__getattr__ = missing_from(__name__, IN_HOROVOD)
