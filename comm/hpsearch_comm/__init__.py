"""Collectives between processes. Imports nothing of the search or of the trainers.

import hpsearch_comm as comm

with comm.init() as group:                # RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, as torchrun sets them
    group.allreduce(tensor)               # the mean over all ranks, in place
"""

from __future__ import annotations

from hpsearch_comm.bootstrap.listener import Listener
from hpsearch_comm.bootstrap.rendezvous import KnownAddresses, MasterRendezvous, Rendezvous, StoreRendezvous
from hpsearch_comm.bootstrap.secret import new_secret, parse_secret
from hpsearch_comm.data_parallel import (
    DataParallel,
    DistributedOptimizer,
    SyncBatchNorm,
    broadcast_optimizer_state,
    broadcast_parameters,
    convert_sync_batchnorm,
)
from hpsearch_comm.environment import init
from hpsearch_comm.errors import (
    CommError,
    CommTimeoutError,
    ConfigurationError,
    GroupClosedError,
    MismatchError,
    NcclError,
    PeerLost,
    RefusedError,
    RendezvousError,
    UsageError,
)
from hpsearch_comm.group import Group
from hpsearch_comm.operations.work import Handle, ReceiveHandle

__all__ = [
    "CommError",
    "CommTimeoutError",
    "ConfigurationError",
    "DataParallel",
    "DistributedOptimizer",
    "Group",
    "GroupClosedError",
    "Handle",
    "KnownAddresses",
    "Listener",
    "MasterRendezvous",
    "MismatchError",
    "NcclError",
    "PeerLost",
    "ReceiveHandle",
    "RefusedError",
    "Rendezvous",
    "RendezvousError",
    "StoreRendezvous",
    "SyncBatchNorm",
    "UsageError",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "convert_sync_batchnorm",
    "init",
    "new_secret",
    "parse_secret",
]
