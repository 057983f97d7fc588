"""A worker's rank in the gang of a wide segment, and how it joins the others from this process."""

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
    """What a worker of a gang needs to know of the others: plain data, sent with the call."""

    rank: int
    """This worker's rank, from 0; rank 0 reports and saves."""
    addresses: tuple[str, ...]
    """Address of each rank, as it announced it."""
    nodes: tuple[str, ...]
    """Node of each rank; ranks of a node are in sequence."""
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
    """Return the `RankInfo`s of a new gang, by rank; None for a worker alone.

    Args:
        addresses: Address of each rank.
        nodes: Node of each rank.
    """
    if len(addresses) == 1:
        return (None,)
    secret = secrets.token_bytes(32)
    return [RankInfo(rank, tuple(addresses), tuple(nodes), secret) for rank in range(len(addresses))]


class GangListener:
    """Listens for gangs in sequence, where the trainable is called in this process.

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
            hpsearch_comm.CommError: It couldn't be formed.
        """
        from hpsearch_comm import Group, KnownAddresses
        from hpsearch_comm.environment import VARIABLES, read_environment

        # Only these: variables of another launcher concern the process that started this one.
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
        """Stop listening: the next address is a new one."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
