"""A worker's rank in the gang of a wide segment, and how the ranks meet.

A trainable in this process joins a group through a `GangListener`. Scripts meet at a `GangStore` in the worker of rank
0, as in torchrun's agent.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    from hpsearch_comm import Group, Listener


@dataclass(frozen=True, slots=True)
class RankInfo:
    """A worker's rank, and the addresses of the other ranks of its gang: plain data, sent with the call."""

    rank: int
    """This worker's rank, from 0; rank 0 reports and saves."""
    addresses: tuple[str, ...]
    """Announced address of each rank."""
    nodes: tuple[str, ...]
    """Node of each rank. The ranks of a node are consecutive."""
    secret: bytes = field(repr=False)
    """32 bytes that only this gang knows."""

    @property
    def width(self) -> int:
        """Number of workers in the gang."""
        return len(self.addresses)

    @property
    def local_rank(self) -> int:
        """This worker's rank among those of its node, from 0."""
        return self.nodes[: self.rank].count(self.nodes[self.rank])

    @property
    def local_width(self) -> int:
        """Number of the gang's workers on this worker's node."""
        return self.nodes.count(self.nodes[self.rank])


def ranks_of_gang(addresses: Sequence[str], nodes: Sequence[str]) -> Sequence[RankInfo | None]:
    """Return the `RankInfo` of each rank of a new gang; None for a single worker.

    Args:
        addresses: Address of each rank.
        nodes: Node of each rank.
    """
    if len(addresses) == 1:
        return (None,)
    secret = secrets.token_bytes(32)
    return [RankInfo(rank, tuple(addresses), tuple(nodes), secret) for rank in range(len(addresses))]


class GangListener:
    """Listens for one gang after another, for a trainable that is called in this process.

    Args:
        node: Splits one machine into several hosts, by a name for this one; empty: as the machine itself does.
        interface: Interface, address or network by which other hosts reach this one; None: as routing says.
    """

    def __init__(self, node: str, interface: str | None) -> None:
        self._node = node
        self._interface = interface
        self._listener: Listener | None = None

    @property
    def address(self) -> str:
        """Address of this process for the next gang. The first access starts to listen.

        Raises:
            hpsearch_comm.ConfigurationError: There is no such interface.
        """
        if self._listener is None:
            from hpsearch_comm import Listener

            self._listener = Listener(self._interface, host=self._node or None)
        return self._listener.address.to_text()

    def join(self, rank_info: RankInfo) -> Group:
        """Form the group of the gang, with the options of the HPSEARCH_COMM_ variables.

        Raises:
            hpsearch_comm.CommError: The group couldn't be formed.
        """
        from hpsearch_comm import Group, KnownAddresses
        from hpsearch_comm.environment import VARIABLES, read_environment

        # Only these: variables of another launcher apply to the process that started this one.
        variables = {name: os.environ[name] for name in VARIABLES if name in os.environ}
        seated = {
            "rank": rank_info.rank,
            "size": rank_info.width,
            "rendezvous": KnownAddresses(rank_info.addresses),
            "secret": rank_info.secret,
            "listener": self._listener,
        }
        return Group(**read_environment(variables).for_group(seated))

    def close(self) -> None:
        """Stop listening. The next address will be a new one."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()


LAUNCHERS = frozenset({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
"""Variables that mpirun or srun sets for the backend's processes. Their number isn't the trial's world size."""

_PATIENCE = timedelta(seconds=10)
"""Limit of one call of the store."""

_ALONE = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",  # a script without a gang takes any free port
}


class StoreLostError(Exception):
    """The worker of rank 0 is lost, and the gang's store with it."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Why the scripts of a gang end: one of them failed, or the runner of rank 0 ended its script."""

    rank: int
    failed: bool
    message: str = ""


class GangStore:
    """Holds a store for one gang after another, and returns the environment of their scripts.

    Args:
        node: Splits one machine into several hosts, by a name for this one; empty: as the machine itself does.
        interface: Interface, address or network by which other hosts reach this one; None: as routing says.
    """

    def __init__(self, node: str, interface: str | None) -> None:
        self._node = node
        self._interface = interface
        self._store: TCPStore | None = None
        self._former: TCPStore | None = None
        self._address = ""

    @property
    def address(self) -> str:
        """Rendezvous of the next gang if this worker is its rank 0, as `host:port`.

        Raises:
            hpsearch_comm.ConfigurationError: There is no such interface.
        """
        if self._store is None:
            from torch.distributed import TCPStore  # type: ignore[attr-defined]

            from hpsearch_comm.bootstrap.interface import local_address

            ip = local_address(interface=self._interface)
            # Bound here, since the store itself would listen on every address.
            family = socket.AF_INET6 if ":" in ip else socket.AF_INET
            listening = socket.create_server((ip, 0), family=family, backlog=4096)
            port = listening.getsockname()[1]
            self._store = TCPStore(
                ip,
                port,
                is_master=True,
                timeout=_PATIENCE,
                wait_for_workers=False,
                master_listen_fd=listening.detach(),
            )
            self._address = f"{ip}:{port}"
        return self._address

    def environment(self, rank_info: RankInfo | None) -> dict[str, str]:
        """Return the environment variables of a script's rendezvous: torchrun's and hpsearch_comm's."""
        if rank_info is None:
            return _ALONE
        host, _, port = rank_info.addresses[0].rpartition(":")
        nodes = list(dict.fromkeys(rank_info.nodes))
        environment = {
            "RANK": str(rank_info.rank),
            "WORLD_SIZE": str(rank_info.width),
            "LOCAL_RANK": str(rank_info.local_rank),
            "LOCAL_WORLD_SIZE": str(rank_info.local_width),
            "GROUP_RANK": str(nodes.index(rank_info.nodes[rank_info.rank])),
            "GROUP_WORLD_SIZE": str(len(nodes)),
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RUN_ID": f"hpsearch-{port}",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "HPSEARCH_COMM_SECRET": rank_info.secret.hex(),
        }
        if self._node:
            environment["HPSEARCH_COMM_HOST"] = self._node
        if self._interface is not None:
            environment["HPSEARCH_COMM_INTERFACE"] = self._interface
        return environment

    def board(self, rank_info: RankInfo | None) -> Board:
        """Open the board of a gang; a script alone has one without readers.

        Raises:
            StoreLostError: The store can't be reached.
        """
        if rank_info is None:
            return Board(None)
        if rank_info.rank == 0:
            return Board(self._store)
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        host, _, port = rank_info.addresses[0].rpartition(":")
        try:
            # torch would retry a missing store again and again; this one exists from the start.
            socket.create_connection((host, int(port)), _PATIENCE.total_seconds()).close()
            return Board(TCPStore(host, int(port), is_master=False, timeout=_PATIENCE, wait_for_workers=False))
        except (OSError, RuntimeError) as error:  # RuntimeError is every failure of a TCPStore
            line = str(error).partition("\n")[0]
            raise StoreLostError(f"rank 0's worker can't be reached at {rank_info.addresses[0]}: {line}") from error

    def renew(self) -> None:
        """Make the next gang use a new store. This one is kept for now, as other ranks may still be leaving."""
        self._former, self._store = self._store, None

    def close(self) -> None:
        """Close the stores."""
        self._former = self._store = None


class Board:
    """Where the runners of a gang's scripts post and read why all scripts end. The first posted ending counts.

    Args:
        store: The gang's; None for a script alone.
    """

    _KEY = "hpsearch/ending"

    def __init__(self, store: TCPStore | None) -> None:
        self._store = store
        self._lost = False

    def read(self) -> Ending | None:
        """Return the posted ending; None if there is none.

        Raises:
            StoreLostError: The store is lost.
        """
        return self._ask(lambda store: store.get(self._KEY) if store.check([self._KEY]) else None)

    def post(self, ending: Ending) -> Ending:
        """Post an ending; return the one that counts.

        Raises:
            StoreLostError: The store is lost.
        """
        text = json.dumps(asdict(ending))
        return self._ask(lambda store: store.compare_set(self._KEY, "", text)) or ending

    def _ask(self, question: Callable[[TCPStore], bytes | None]) -> Ending | None:
        if self._store is None:
            return None
        try:
            if not self._lost:  # torch writes to stderr at each failed call
                text = question(self._store)
                return None if text is None else Ending(**json.loads(text))
        except RuntimeError:
            self._lost = True
        raise StoreLostError("the worker of rank 0 is gone")
