"""Sees that a rank of another host is gone before it has connected.

Of two ranks the higher connects, and the lower one waits: were the higher one killed before that, the lower one would
learn nothing until its deadline. So while it waits it opens a connection of its own, which the other holds for as long
as it forms its group. Where such a connection can't be made, as through a firewall, nothing is known of the rank; the
group forms without.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable, Iterator

from hpsearch_comm.formation.keepalive import tell_when_gone
from hpsearch_comm.formation.outgoing import Outgoing

__all__ = ["Watch"]

_MOST_WATCHED = 64
"""Ranks that are watched at a time, so that a large group doesn't flood its late ones."""
_REFUSED_SECONDS = 3.0
"""How long a rank must refuse connections until it counts as gone. A firewall may refuse them in its place: a rank that
is well connects by itself meanwhile."""


class Watch:
    """Connections to ranks of other hosts that have yet to connect.

    Args:
        make: Makes the connection to a rank, given what says of a failed try whether another one is of no use.
        heartbeat_timeout: Seconds for which a rank's host may answer nothing.
    """

    def __init__(self, make: Callable[[int, Callable[[OSError], bool]], Outgoing], heartbeat_timeout: float) -> None:
        self._make = make
        self._heartbeat_timeout = heartbeat_timeout
        self._sentinels: dict[int, _Sentinel] = {}

    def over(self, missing: set[int]) -> None:
        """Watch over these ranks, and no others; called now and then.

        Raises:
            RefusedError: One of them doesn't belong to the group.
            RendezvousError: One of them listens no more.
        """
        for peer in self._sentinels.keys() - missing:
            self._sentinels.pop(peer).close()
        for peer in sorted(missing - self._sentinels.keys())[: _MOST_WATCHED - len(self._sentinels)]:
            self._sentinels[peer] = _Sentinel(peer, self._make)
        for sentinel in self._sentinels.values():
            sentinel.start()

    def advance(self, outgoing: Outgoing) -> None:
        """Go on with one of the connections after the selector has woken."""
        sock = outgoing.advance()
        if sock is not None:
            tell_when_gone(sock, self._heartbeat_timeout)
            self._sentinels[outgoing.hello.target].held = sock

    def held(self) -> Iterator[tuple[int, socket.socket]]:
        """Give the ranks that hold a connection, with it."""
        for peer, sentinel in self._sentinels.items():
            if sentinel.held is not None:
                yield peer, sentinel.held

    def close(self) -> None:
        """Close all of them."""
        self.over(set())


class _Sentinel:
    """The connection to one rank."""

    def __init__(self, peer: int, make: Callable[[int, Callable[[OSError], bool]], Outgoing]) -> None:
        self.held: socket.socket | None = None
        self._outgoing = make(peer, self._is_gone)
        self._refused_since: float | None = None

    def start(self) -> None:
        if self.held is None and not self._outgoing.under_way and self._outgoing.due <= time.monotonic():
            self._outgoing.start()

    def close(self) -> None:
        self._outgoing.close()
        if self.held is not None:
            self.held.close()

    def _is_gone(self, error: OSError) -> bool:
        now = time.monotonic()
        if error.errno != errno.ECONNREFUSED:
            self._refused_since = None
        elif self._refused_since is None:
            self._refused_since = now
        return self._refused_since is not None and now - self._refused_since >= _REFUSED_SECONDS
