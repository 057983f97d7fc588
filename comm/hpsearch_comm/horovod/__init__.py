"""Horovod's PyTorch API over this package's groups: a script changes one import.

import hpsearch_comm.horovod as hvd     # was: import horovod.torch as hvd
"""

from __future__ import annotations

from hpsearch_comm.horovod.compression import Compression
from hpsearch_comm.horovod.errors import HorovodInternalError
from hpsearch_comm.horovod.gathering import (
    allgather,
    allgather_async,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
)
from hpsearch_comm.horovod.handles import poll, synchronize
from hpsearch_comm.horovod.job import (
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from hpsearch_comm.horovod.process_sets import ProcessSet, global_process_set
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

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "cross_rank",
    "cross_size",
    "global_process_set",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "poll",
    "rank",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "synchronize",
]

Average, Sum, Adasum, Min, Max, Product = ReduceOp
