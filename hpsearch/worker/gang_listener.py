"""Where the next gang reaches a worker that calls its trainable in this process, and the group that comes of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hpsearch.worker.gang import PATIENCE_SECONDS, RankInfo

if TYPE_CHECKING:
    from hpsearch_comm import Group, Listener

__all__ = ["GangListener"]


class GangListener:
    """Listens for one gang after the other.

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
        """Where the next gang reaches this process. It is listened to from when it is first asked for.

        Raises:
            hpsearch_comm.ConfigurationError: There is no such interface.
        """
        if self._listener is None:
            from hpsearch_comm import Listener

            self._listener = Listener(self._interface, host=self._node or None)
        return self._listener.address.to_text()

    def join(self, rank_info: RankInfo) -> Group:
        """Form the group of the gang, with the options in HPSEARCH_COMM_ variables.

        Raises:
            hpsearch_comm.CommError: It didn't come together.
        """
        from hpsearch_comm import Group, KnownAddresses
        from hpsearch_comm.environment import VARIABLES, read_environment

        # Nothing else: what another launcher has set for the process that started this one isn't meant here.
        variables = {name: os.environ[name] for name in VARIABLES if name in os.environ}
        variables.setdefault("HPSEARCH_COMM_TIMEOUT", str(PATIENCE_SECONDS))
        seated = {
            "rank": rank_info.rank,
            "size": rank_info.width,
            "rendezvous": KnownAddresses(rank_info.addresses),
            "secret": rank_info.secret,
            "listener": self._listener,
        }
        return Group(**read_environment(variables).for_group(seated))

    def close(self) -> None:
        """Listen no longer: the next address is a new one."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
