"""A conversation over a socket, written as a generator, that never blocks: one thread holds any number of them."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Generator

__all__ = ["Conversation", "Talk"]

Talk = Generator[bytes | int, bytes, None]
"""Yields bytes, to send them all, or a number, to be given exactly as many bytes that arrive."""


class Conversation:
    """A talk and how far it has got. The socket stays the caller's.

    Args:
        sock: A connected socket that doesn't block.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._talk: Talk | None = None
        self._begun = False
        self._outgoing = memoryview(b"")
        self._incoming = bytearray()
        self._wanted = 0

    def begin(self, talk: Talk) -> None:
        """Leave the talk under way, and begin this one with the next `advance`."""
        self._talk, self._begun, self._wanted = talk, False, 0
        self._incoming.clear()

    def advance(self) -> bool:
        """Go on as far as it goes without waiting; False when the talk has ended.

        Raises:
            OSError: The connection has ended.
            Exception: Whatever the talk raises.
        """
        assert self._talk is not None
        try:
            while True:
                if self._outgoing:
                    self._outgoing = self._outgoing[self.sock.send(self._outgoing) :]
                elif len(self._incoming) < self._wanted:
                    self._read()
                else:
                    self._proceed(self._talk)
        except BlockingIOError:
            return True
        except StopIteration:
            return False

    @property
    def events(self) -> int:
        """What to wait for before the next `advance`, for a selector."""
        return selectors.EVENT_WRITE if self._outgoing else selectors.EVENT_READ

    def _read(self) -> None:
        # Never more than is wanted, so that what a stranger sends can't pile up here.
        chunk = self.sock.recv(self._wanted - len(self._incoming))
        if not chunk:
            raise ConnectionResetError("the connection ended")
        self._incoming += chunk

    def _proceed(self, talk: Talk) -> None:
        arrived = bytes(self._incoming)
        self._incoming.clear()
        step = talk.send(arrived) if self._begun else next(talk)
        self._begun = True
        if isinstance(step, bytes):
            self._outgoing, self._wanted = memoryview(step), 0
        else:
            self._wanted = step
