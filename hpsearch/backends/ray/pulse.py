"""Check that the Ray that this process is connected to is still alive.

Otherwise Ray ends this process without a message: at the next use of the object store if this node's raylet has died,
and after a minute if the cluster's GCS doesn't answer. A call to such a GCS also hangs until then.
"""

from __future__ import annotations

import contextlib
import socket

__all__ = ["Pulse"]

_KNOCK_SECONDS = 1.0
"""Seconds in which the GCS must accept a connection."""


class Pulse:
    """Polls the two processes that this one needs.

    Args:
        raylet: Path of the socket of this node's raylet.
        gcs: Host and port of the cluster's GCS.
        patience: Seconds for which the GCS may be away; 0: it won't come back. Ray's own patience is a minute.
    """

    def __init__(self, raylet: str, gcs: tuple[str, int], patience: float = 0.0) -> None:
        self._raylet: socket.socket | None = socket.socket(socket.AF_UNIX)
        self._gcs = gcs
        self._patience = patience
        self._away_since: float | None = None
        try:
            self._raylet.connect(raylet)
            self._raylet.setblocking(False)
        except OSError:  # Ray is connected in a way that can't be checked here
            self.close()

    def lost(self, now: float) -> str | None:
        """Return a message if one of the two is lost; None if not.

        Args:
            now: Seconds.
        """
        if self._raylet_ended():
            return "the raylet of this node has ended"
        try:
            socket.create_connection(self._gcs, _KNOCK_SECONDS).close()
        except OSError as error:
            self._away_since = now if self._away_since is None else self._away_since
            if now - self._away_since >= self._patience:
                host, port = self._gcs
                return f"its GCS at {host}:{port} doesn't answer: {error}"
        else:
            self._away_since = None
        return None

    @property
    def answers(self) -> bool:
        """Whether the GCS answered at the last poll."""
        return self._away_since is None

    def close(self) -> None:
        """Stop polling."""
        if self._raylet is not None:
            self._raylet.close()
            self._raylet = None

    def _raylet_ended(self) -> bool:
        if self._raylet is None:
            return False
        with contextlib.suppress(BlockingIOError):
            try:
                return self._raylet.recv(1) == b""
            except ConnectionError:
                return True
        return False
