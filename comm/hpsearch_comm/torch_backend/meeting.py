"""The rendezvous of a process group's ranks, through the store that torch passes to its backends."""

from __future__ import annotations

import inspect
import os
import time
from typing import Any

import torch.distributed as dist
from torch.distributed import FileStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from hpsearch_comm.bootstrap.rendezvous import HeldStoreRendezvous
from hpsearch_comm.bootstrap.secret import agree_on_secret, parse_secret
from hpsearch_comm.environment import VARIABLES, read_environment
from hpsearch_comm.group import Group
from hpsearch_comm.subgroup import related_secret
from hpsearch_comm.torch_backend.devices import check_backends, requested_backends
from hpsearch_comm.torch_backend.process_group import CommProcessGroup
from hpsearch_comm.torch_backend.work import as_torchs

_SECRET = "HPSEARCH_COMM_SECRET"
_OF_TORCH = ("HPSEARCH_COMM_TIMEOUT", "HPSEARCH_COMM_START_TIMEOUT")
"""Variables that are ignored, because torch's timeout applies."""


def make_process_group(options: Any, _backend_options: object = None) -> CommProcessGroup:
    """Create a process group, for `Backend.register_backend`; every rank of the group calls it.

    Args:
        options: torch's options: the store, this rank, the size, the timeout and the group's name.

    Raises:
        DistBackendError: The rendezvous failed, or another backend is requested for the same group.
    """
    with as_torchs():
        check_backends(requested_backends(inspect.currentframe()))
        return _make(options)


def _make(options: Any) -> CommProcessGroup:
    rank, size, name = options.group_rank, options.group_size, str(options.group_id)
    seconds = options.timeout.total_seconds()
    deadline = time.monotonic() + seconds
    kind, host = _describe(options.store)
    env = {name: value for name, value in os.environ.items() if name in VARIABLES and name not in _OF_TORCH}
    settings = dict(read_environment(env).options)
    if options.global_ranks_in_group:  # only the group of all ranks has a timeline
        settings.pop("timeline", None)
    secret = _secret(rank, size, name, kind, host, deadline)
    group = Group(
        rank,
        size,
        rendezvous=HeldStoreRendezvous(options.store, f"torch's store ({kind})", host) if size > 1 else None,
        secret=secret,
        name=name,
        timeout=seconds,
        start_timeout=seconds,
        deadline=deadline,
        **settings,
    )
    return CommProcessGroup(group, secret, seconds)


def _secret(rank: int, size: int, name: str, kind: str, host: str | None, deadline: float) -> bytes:
    """Return the group's secret: derived from the environment's or from that of the default group, or a new one."""
    if os.environ.get(_SECRET, "").strip():
        return related_secret(parse_secret(os.environ[_SECRET]), name)
    if dist.is_initialized():
        everybody = dist.distributed_c10d._get_default_group()
        if isinstance(everybody, CommProcessGroup):
            return related_secret(everybody.secret, name)
    return agree_on_secret(rank, size, f"torch.distributed {kind} {name}", deadline, host=host)


def _describe(store: Store) -> tuple[str, str | None]:
    """Return a name of the store, the same on every rank, and the host of rank 0, or None if it is unknown."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if isinstance(store, TCPStore):
        return f"TCPStore at port {store.port}", store.host
    if isinstance(store, FileStore):
        return f"FileStore at {os.path.realpath(store.path)}", None  # type: ignore[attr-defined]
    return type(store).__name__, None
