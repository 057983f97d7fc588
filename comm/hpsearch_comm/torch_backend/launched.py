"""A rendezvous of torch.distributed for any launcher and any backend: `init_method="launcher://"`.

torch's `env://` supports only RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and needs a port chosen beforehand.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta

from torch.distributed import Store, TCPStore, default_pg_timeout  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous as torch_rendezvous

from hpsearch_comm.bootstrap.handshake import Credentials
from hpsearch_comm.environment import Arguments, read_environment
from hpsearch_comm.errors import UsageError
from hpsearch_comm.torch_backend.work import as_torchs

SCHEME = "launcher"
_NAME = "torch.distributed's store"


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
