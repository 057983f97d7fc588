"""Whether the Ray that this process is connected to is still there.

Ray itself ends this process without a word: at the next use of the object store where the raylet of this node has died,
and after a minute where the cluster's GCS doesn't answer. A call to a GCS that doesn't answer also hangs until then.
"""

from __future__ import annotations

import contextlib
import socket

__all__ = ["Pulse"]

_KNOCK_SECONDS = 1.0
"""A GCS that hasn't taken a connection by then doesn't answer."""


class Pulse:
    """Looks at the two processes without which this one can't go on.

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
        except OSError:  # Ray itself is connected, by a way that isn't to be seen from here
            self.close()

    def lost(self, now: float) -> str | None:
        """Say which of the two is gone for good; None: neither.

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
        """Whether the GCS answered at the last look."""
        return self._away_since is None

    def close(self) -> None:
        """Look no more."""
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
