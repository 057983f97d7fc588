"""Collectives between processes. Imports nothing of the search or of the trainers.

import hpsearch_comm as comm

with comm.init() as group:                # RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, as torchrun sets them
    group.allreduce(tensor)               # the mean over all ranks, in place

Names are imported on first use, so that the launcher, which computes nothing, doesn't load torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from hpsearch_comm.shm.shared_memory import SharedMemory

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
    "SharedMemory",
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

_PLACES = {
    "hpsearch_comm.bootstrap.listener": "Listener",
    "hpsearch_comm.bootstrap.rendezvous": "KnownAddresses MasterRendezvous Rendezvous StoreRendezvous",
    "hpsearch_comm.bootstrap.secret": "new_secret parse_secret",
    "hpsearch_comm.data_parallel": "DataParallel DistributedOptimizer SyncBatchNorm broadcast_optimizer_state "
    "broadcast_parameters convert_sync_batchnorm",
    "hpsearch_comm.environment": "init",
    "hpsearch_comm.errors": "CommError CommTimeoutError ConfigurationError GroupClosedError MismatchError NcclError "
    "PeerLost RefusedError RendezvousError UsageError",
    "hpsearch_comm.group": "Group",
    "hpsearch_comm.operations.work": "Handle ReceiveHandle",
    "hpsearch_comm.shm.shared_memory": "SharedMemory",
}
"""The public names that each module defines."""

_MODULES = {name: module for module, names in _PLACES.items() for name in names.split()}


if not TYPE_CHECKING:  # with __getattr__, a type checker would accept misspelled names

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
