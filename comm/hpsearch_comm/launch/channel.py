"""The agent's end of the socket by which a rank and the launcher tell each other who meets; see roster.py."""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Callable

from hpsearch_comm.launch.errors import LaunchError

__all__ = ["Channel"]

_CHUNK = 1 << 16
_MOST_BYTES = 1 << 16
"""Of a line that a rank says."""


class Channel:
    """Lines both ways; nothing here waits.

    Args:
        sock: This end.
        selector: Calls what is due.
        hear: Is given each line that the rank says, without its end.
    """

    def __init__(self, sock: socket.socket, selector: selectors.BaseSelector, hear: Callable[[bytes], None]) -> None:
        self._sock = sock
        self._sock.setblocking(False)
        self._hear = hear
        self._selector: selectors.BaseSelector | None = selector
        self._arrived = b""
        self._leaving = b""
        selector.register(self._sock, selectors.EVENT_READ, self._go_on)

    def say(self, line: bytes) -> None:
        """Put a line, with its end, on its way to the rank."""
        self._leaving += line
        self._write()

    def close(self) -> None:
        """Say and hear no more."""
        self._stop()
        self._sock.close()

    def _go_on(self) -> None:
        self._read()
        self._write()

    def _read(self) -> None:
        try:
            data = self._sock.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:  # nobody has the other end any more
            self._stop()
            return
        *lines, self._arrived = (self._arrived + data).split(b"\n")
        if len(self._arrived) > _MOST_BYTES:
            raise LaunchError(f"expected lines of at most {_MOST_BYTES} bytes of a rank, got {self._arrived[:64]!r}...")
        for line in lines:
            self._hear(line)

    def _write(self) -> None:
        if self._selector is None:
            return
        try:
            while self._leaving:
                self._leaving = self._leaving[self._sock.send(self._leaving) :]
        except BlockingIOError:
            pass
        except OSError:  # it has ended, as its process will tell
            self._leaving = b""
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._leaving else 0)
        with contextlib.suppress(KeyError):
            self._selector.modify(self._sock, wanted, self._go_on)

    def _stop(self) -> None:
        if self._selector is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._sock)
        self._selector = None
