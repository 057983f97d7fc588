"""Where the scripts of a gang meet: a store that the worker of rank 0 holds, as torchrun's agent does."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from hpsearch.worker.gang import RankInfo

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

__all__ = ["LAUNCHERS", "Board", "Ending", "GangStore", "StoreLostError"]

LAUNCHERS = frozenset({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
"""What mpirun or srun has set if it started the backend's processes: their number, which isn't that of a trial's."""

_PATIENCE = timedelta(seconds=10)
"""For one answer of the store."""

_ALONE = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",  # a script that meets nobody takes any free one
}


class StoreLostError(Exception):
    """The worker of rank 0 is gone, and the gang's store with it."""


@dataclass(frozen=True, slots=True)
class Ending:
    """What ends the scripts of a gang: one that failed, or rank 0's, which its runner has ended."""

    rank: int
    failed: bool
    message: str = ""


class GangStore:
    """Holds a store for one gang after the other, and knows what their scripts have to be told.

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
        """Where the next gang meets if this worker is its rank 0, as `host:port`.

        Raises:
            hpsearch_comm.ConfigurationError: There is no such interface.
        """
        if self._store is None:
            from torch.distributed import TCPStore  # type: ignore[attr-defined]

            from hpsearch_comm.bootstrap.interface import local_address

            ip = local_address(interface=self._interface)
            # Bound here, since a store by itself listens on every address.
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
        """Give the variables by which a script finds the others, as torchrun sets them, and hpsearch_comm's own."""
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
        """Open the board of a gang; that of a script by itself has no readers.

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
            # A store that isn't there would be asked again and again; this one has been there from the start.
            socket.create_connection((host, int(port)), _PATIENCE.total_seconds()).close()
            return Board(TCPStore(host, int(port), is_master=False, timeout=_PATIENCE, wait_for_workers=False))
        except (OSError, RuntimeError) as error:  # the latter is what every failure of a TCPStore is
            line = str(error).partition("\n")[0]
            raise StoreLostError(f"rank 0's worker can't be reached at {rank_info.addresses[0]}: {line}") from error

    def renew(self) -> None:
        """Give the next gang a store of its own. This one's is kept meanwhile: other ranks may still be leaving."""
        self._former, self._store = self._store, None

    def close(self) -> None:
        """Close the stores."""
        self._former = self._store = None


class Board:
    """Where the runners of a gang's scripts read what ends them all. The first ending that is posted stands.

    Args:
        store: The gang's; None for a script by itself.
    """

    _KEY = "hpsearch/ending"

    def __init__(self, store: TCPStore | None) -> None:
        self._store = store
        self._lost = False

    def read(self) -> Ending | None:
        """Give what was posted.

        Raises:
            StoreLostError: The store is gone.
        """
        return self._ask(lambda store: store.get(self._KEY) if store.check([self._KEY]) else None)

    def post(self, ending: Ending) -> Ending:
        """Post an ending; give the one that stands.

        Raises:
            StoreLostError: The store is gone.
        """
        text = json.dumps(asdict(ending))
        return self._ask(lambda store: store.compare_set(self._KEY, "", text)) or ending

    def _ask(self, question: Callable[[TCPStore], bytes | None]) -> Ending | None:
        if self._store is None:
            return None
        try:
            if not self._lost:  # torch writes to stderr each time that it asks in vain
                text = question(self._store)
                return None if text is None else Ending(**json.loads(text))
        except RuntimeError:
            self._lost = True
        raise StoreLostError("the worker of rank 0 is gone")
