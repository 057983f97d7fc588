"""The rendezvous of a process group's ranks, through the store that torch passes to its backends.

`init_method="launcher://"` makes such a store with any launcher and for any backend. torch's `env://` supports only
RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and needs a port chosen beforehand.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from types import FrameType
from typing import Any

import torch.distributed as dist
from torch.distributed import (  # type: ignore[attr-defined]
    FileStore,
    PrefixStore,
    Store,
    TCPStore,
    default_pg_timeout,
)
from torch.distributed.distributed_c10d import BackendConfig
from torch.distributed.rendezvous import rendezvous as torch_rendezvous

from hpsearch_comm.bootstrap.handshake import Credentials
from hpsearch_comm.bootstrap.rendezvous import HeldStoreRendezvous
from hpsearch_comm.bootstrap.secret import agree_on_secret, parse_secret
from hpsearch_comm.environment import VARIABLES, Arguments, read_environment
from hpsearch_comm.errors import UsageError
from hpsearch_comm.group import Group
from hpsearch_comm.subgroup import related_secret
from hpsearch_comm.torch_backend.process_group import DEVICES, CommProcessGroup
from hpsearch_comm.torch_backend.work import as_torchs

SCHEME = "launcher"
_NAME = "torch.distributed's store"
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


def requested_backends(frame: FrameType | None) -> dict[str, str]:
    """Return the backend name by device type of the group that torch is creating.

    torch doesn't pass them to a backend, so its frames are inspected.

    Args:
        frame: The frame of the function that torch has called. It and its callers are searched for a `BackendConfig`.

    Returns:
        The names, or an empty dict if no `BackendConfig` is found.
    """
    while frame is not None:
        for value in list(frame.f_locals.values()):
            if isinstance(value, BackendConfig):
                return {device: str(backend) for device, backend in value.get_device_backend_map().items()}
        frame = frame.f_back
    return {}


def check_backends(backends: dict[str, str]) -> None:
    """Check that a group has no other backend: torch would use only this one and never create the others.

    Raises:
        UsageError: Another backend is requested too, or this one for a device that it doesn't support.
    """
    text = ",".join(f"{device}:{backend}" for device, backend in backends.items())
    other_backends = sorted({backend for backend in backends.values() if backend != "hpsearch"})
    if other_backends:
        raise UsageError(
            f'a group of the hpsearch backend must have no other backend, got "{text}": make it with "hpsearch", '
            "which takes tensors on the CPU and on CUDA devices, and another group for the other backend: "
            f'dist.new_group(backend="{other_backends[0]}")'
        )
    unknown = [device for device in backends if device not in DEVICES]
    if unknown:
        raise UsageError(
            f'a group of the hpsearch backend takes tensors on the CPU and on CUDA devices, got "{text}": make it with '
            f'"hpsearch", and move tensors of {unknown[0]} with tensor.cpu()'
        )


def rendezvous_of_launcher(
    url: str, timeout: timedelta = default_pg_timeout, **_options: object
) -> Iterator[tuple[Store, int, int]]:
    """Connect the ranks with the launcher's variables, for `register_rendezvous_handler`.

    Without a launcher, the group has one rank.

    Args:
        url: `launcher://`.
        timeout: Timeout of the rendezvous and of the store.

    Yields:
        A store, this rank, and the number of ranks.

    Raises:
        DistBackendError: The rendezvous failed.
    """
    with as_torchs():
        if url != f"{SCHEME}://":
            raise UsageError(
                f"{SCHEME}:// takes rank and world_size from the launcher, got {url!r}: leave out rank= and world_size="
            )
        arguments = read_environment(os.environ)
        if arguments.rendezvous is None or arguments.by_launcher:
            store: Store = _open(arguments, timeout)
        else:
            store, *_ = next(torch_rendezvous("env://", arguments.rank, arguments.size, timeout=timeout))
    yield store, arguments.rank, arguments.size
    raise RuntimeError(f"{SCHEME}:// can't be used to meet once more: call init_process_group anew")


def _open(arguments: Arguments, timeout: timedelta) -> TCPStore:
    """Open a store on a free port of rank 0's host. Rank 0 sends the port to the other ranks, which authenticate."""
    rank, size, rendezvous = arguments.rank, arguments.size, arguments.rendezvous
    if rendezvous is None:
        return TCPStore("127.0.0.1", 0, size, is_master=True, timeout=timeout)
    options = arguments.for_group({"name": _NAME, "start_timeout": timeout.total_seconds()})
    host, store = rendezvous.host, None
    if rank == 0:
        store = TCPStore(host, 0, size, is_master=True, timeout=timeout, wait_for_workers=False)
    credentials = Credentials(options["secret"], _NAME)
    texts = rendezvous.exchange(rank, size, str(store.port) if store else "", credentials, options["deadline"])
    return store or TCPStore(host, int(texts[0]), size, is_master=False, timeout=timeout, wait_for_workers=False)
