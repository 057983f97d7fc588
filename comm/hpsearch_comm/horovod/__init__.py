# ruff: noqa: F403  (every name in these modules' `__all__` belongs to the API)
"""Horovod's PyTorch API over this package's groups: a script changes one import.

import hpsearch_comm.horovod as hvd     # was: import horovod.torch as hvd
"""

from __future__ import annotations

from hpsearch_comm.horovod import built, elastic, gathering, handles, job, lifetime, objects, process_sets, reductions
from hpsearch_comm.horovod.built import *
from hpsearch_comm.horovod.compression import Compression
from hpsearch_comm.horovod.errors import HorovodInternalError, MissingError
from hpsearch_comm.horovod.gathering import *
from hpsearch_comm.horovod.handles import *
from hpsearch_comm.horovod.job import *
from hpsearch_comm.horovod.lifetime import *
from hpsearch_comm.horovod.missing import IN_HOROVOD, missing_from
from hpsearch_comm.horovod.objects import *
from hpsearch_comm.horovod.optimizer import DistributedOptimizer
from hpsearch_comm.horovod.process_sets import *
from hpsearch_comm.horovod.reductions import *
from hpsearch_comm.horovod.request import ReduceOp
from hpsearch_comm.horovod.sync_batch_norm import SyncBatchNorm

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "MissingError",
    "Product",
    "Sum",
    "SyncBatchNorm",
    "elastic",
]
__all__ += built.__all__
__all__ += gathering.__all__
__all__ += handles.__all__
__all__ += job.__all__
__all__ += lifetime.__all__
__all__ += objects.__all__
__all__ += process_sets.__all__
__all__ += reductions.__all__

Average, Sum, Adasum, Min, Max, Product = ReduceOp

__getattr__ = missing_from(__name__, IN_HOROVOD)
