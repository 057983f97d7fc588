"""Which ranks share a host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpsearch_comm.errors import UsageError

__all__ = ["Topology"]


@dataclass(frozen=True, slots=True)
class Topology:
    """Where the ranks of a group are, as seen by one of them.

    Raises:
        UsageError: The hosts don't hold each rank from 0 up exactly once, in order, or this rank isn't among them.
    """

    rank: int
    """This rank."""
    hosts: tuple[tuple[int, ...], ...]
    """The ranks of each host in rising order; the hosts by their lowest rank."""

    def __post_init__(self) -> None:
        ranks = [rank for host in self.hosts for rank in host]
        ordered = all(host == tuple(sorted(host)) for host in self.hosts) and self.hosts == tuple(sorted(self.hosts))
        if sorted(ranks) != list(range(len(ranks))) or not all(self.hosts) or not ordered:
            raise UsageError(
                f"hosts must hold each rank from 0 up exactly once, in rising order, and be ordered by their lowest "
                f"rank, got {self.hosts}"
            )
        if self.rank not in ranks:
            raise UsageError(f"rank must be one of the {len(ranks)} ranks of the hosts, got {self.rank}")

    @classmethod
    def of(cls, rank: int, identities: Sequence[str]) -> Topology:
        """Put ranks whose hosts have equal identities together.

        Args:
            rank: This rank.
            identities: The identity of each rank's host, by rank.
        """
        hosts: dict[str, list[int]] = {}
        for other, identity in enumerate(identities):
            hosts.setdefault(identity, []).append(other)
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
