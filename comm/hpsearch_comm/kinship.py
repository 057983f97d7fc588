"""A second group of the same ranks, whose addresses and secret come from the first."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Any

from hpsearch_comm.bootstrap.handshake import Credentials
from hpsearch_comm.bootstrap.rendezvous import Rendezvous

__all__ = ["GroupRendezvous", "related_secret"]


class GroupRendezvous(Rendezvous):
    """An existing group of the same ranks.

    Args:
        exchange: Its `allgather_object`.
        host: Where rank 0 is, if that is known.
    """

    def __init__(self, exchange: Callable[[Any], list[Any]], host: str | None) -> None:
        self._exchange = exchange
        self.host = host

    def exchange(self, rank: int, size: int, mine: str, credentials: Credentials, deadline: float) -> list[str]:
        """Give every rank's address; the group's own timeout holds."""
        return [str(address) for address in self._exchange(mine)]


def related_secret(secret: bytes, name: str) -> bytes:
    """Derive the secret of another group from that of this one: HMAC-SHA256 of its name."""
    return hmac.digest(secret, b"hpsearch_comm duplicate " + hashlib.sha256(name.encode()).digest(), "sha256")
