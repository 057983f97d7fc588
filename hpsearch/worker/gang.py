"""A worker's place in the gang that runs a wide segment: plain data, which travels with the call."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["PATIENCE_SECONDS", "RankInfo"]

PATIENCE_SECONDS = 300.0
"""What an operation of a gang's group may take without progress, where HPSEARCH_COMM_TIMEOUT says nothing else.

A death is noticed at once anyhow. This is for ranks that hang, and must be longer than what one does while the others
wait: to write a large checkpoint, say.
"""


@dataclass(frozen=True, slots=True)
class RankInfo:
    """What one worker of a gang has to know of the others."""

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
