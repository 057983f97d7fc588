"""A worker's place in the gang that runs a wide segment, and how it joins the others from this process."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpsearch_comm import Group, Listener

__all__ = ["GangListener", "RankInfo", "ranks_of_gang"]


@dataclass(frozen=True, slots=True)
class RankInfo:
    """What one worker of a gang has to know of the others: plain data, which travels with the call."""

    rank: int
    """This worker's, from 0; rank 0 reports and saves."""
    addresses: tuple[str, ...]
    """By rank: where each is reached, as it said itself before."""
    nodes: tuple[str, ...]
    """By rank: the node that each is on; those of one node stand together."""
    secret: bytes = field(repr=False)
    """32 bytes that this gang alone knows."""

    @property
    def width(self) -> int:
        """Workers in the gang."""
        return len(self.addresses)

    @property
    def local_rank(self) -> int:
        """This worker's number among those of its node, from 0."""
        return self.nodes[: self.rank].count(self.nodes[self.rank])

    @property
    def local_width(self) -> int:
        """Workers of the gang on this worker's node."""
        return self.nodes.count(self.nodes[self.rank])


def ranks_of_gang(addresses: Sequence[str], nodes: Sequence[str]) -> Sequence[RankInfo | None]:
    """Give the places of a new gang, by rank; a worker that is alone needs none.

    Args:
        addresses: By rank: where each is reached.
        nodes: By rank: the node that each is on.
    """
    if len(addresses) == 1:
        return (None,)
    secret = secrets.token_bytes(32)
    return [RankInfo(rank, tuple(addresses), tuple(nodes), secret) for rank in range(len(addresses))]


class GangListener:
    """Listens for one gang after the other, where the trainable is called in this process.

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
