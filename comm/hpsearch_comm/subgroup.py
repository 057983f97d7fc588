"""A second group of the same ranks, whose addresses and secret come from the first."""

from __future__ import annotations

import hashlib
import hmac
import weakref
from collections.abc import Callable
from typing import Any

from hpsearch_comm.bootstrap.handshake import Credentials
from hpsearch_comm.bootstrap.rendezvous import Rendezvous

__all__ = ["GroupRendezvous", "related_secret"]


class GroupRendezvous(Rendezvous):
    """An existing group of the same ranks, which it doesn't keep: the new group, whose options it is in, may live on.

    Args:
        exchange: Its `gather_in`, of a group that is there until the new one has formed.
        host: Where rank 0 is, if that is known.
    """

    def __init__(self, exchange: Callable[[str, Any], list[Any]], host: str | None) -> None:
        self._exchange = weakref.WeakMethod(exchange)
        self.host = host

    def exchange(self, rank: int, size: int, mine: str, credentials: Credentials, deadline: float) -> list[str]:
        """Give every rank's address; the group's own timeout holds."""
        exchange = self._exchange()
        assert exchange is not None
        return [str(address) for address in exchange("duplicate", mine)]


def related_secret(secret: bytes, name: str) -> bytes:
    """Derive the secret of another group from that of this one: HMAC-SHA256 of its name."""
    return hmac.digest(secret, b"hpsearch_comm duplicate " + hashlib.sha256(name.encode()).digest(), "sha256")
