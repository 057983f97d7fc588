"""Which ranks share a host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Topology:
    """Where the ranks of a group are, as seen by one of them."""

    rank: int
    """This rank."""
    hosts: tuple[tuple[int, ...], ...]
    """The ranks of each host in rising order, each rank from 0 up once; the hosts by their lowest rank."""

    @classmethod
    def of(cls, rank: int, identities: Sequence[str]) -> Topology:
        """Put ranks whose hosts have equal identities together.

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
        """Which of the hosts is this rank's."""
        return next(index for index, ranks in enumerate(self.hosts) if self.rank in ranks)

    @property
    def local_ranks(self) -> tuple[int, ...]:
        """The ranks of this rank's host, itself among them."""
        return self.hosts[self.host_index]

    @property
    def local_rank(self) -> int:
        """This rank's place among the ranks of its host."""
        return self.local_ranks.index(self.rank)

    @property
    def local_size(self) -> int:
        """Number of ranks on this rank's host."""
        return len(self.local_ranks)
