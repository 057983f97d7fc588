"""Which ranks share a host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Topology:
    """The hosts of a group's ranks, as seen from one rank."""

    rank: int
    """This rank."""
    hosts: tuple[tuple[int, ...], ...]
    """The ranks of each host in ascending order. The hosts are ordered by their lowest rank."""

    @classmethod
    def of(cls, rank: int, identities: Sequence[str]) -> Topology:
        """Group the ranks by host. Ranks with equal identities are on the same host.

        Args:
            rank: This rank.
            identities: The identity of each rank's host, by rank.
        """
        hosts: dict[str, list[int]] = {}
        for other_rank, identity in enumerate(identities):
            hosts.setdefault(identity, []).append(other_rank)
        return cls(rank, tuple(tuple(ranks) for ranks in hosts.values()))

    @property
    def size(self) -> int:
        """Number of ranks."""
        return sum(len(ranks) for ranks in self.hosts)

    @property
    def host_index(self) -> int:
        """Index of this rank's host in `hosts`."""
        return next(index for index, ranks in enumerate(self.hosts) if self.rank in ranks)

    @property
    def local_ranks(self) -> tuple[int, ...]:
        """The ranks of this rank's host, including this rank."""
        return self.hosts[self.host_index]

    @property
    def local_rank(self) -> int:
        """This rank's index among the ranks of its host."""
        return self.local_ranks.index(self.rank)

    @property
    def local_size(self) -> int:
        """Number of ranks on this rank's host."""
        return len(self.local_ranks)
