"""A connection that this rank opens to another while the group forms."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any

from hpsearch_comm.errors import RefusedError, RendezvousError
from hpsearch_comm.formation.address import Address
from hpsearch_comm.formation.handshake import ANSWER_BYTES, NONCE_BYTES, Credentials, Hello, Proof
from hpsearch_comm.formation.inheritance import close_in_children
from hpsearch_comm.formation.reception import peer_uid

__all__ = ["Outgoing"]

_Place = tuple[Any, ...] | str

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0

_PASSING = {
    errno.EAGAIN,
    errno.ECONNABORTED,
    errno.ECONNRESET,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.EINTR,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.EPIPE,
    errno.ETIMEDOUT,
}
"""What may be gone at the next try: a crowded peer, a route or a link that is just coming up."""


def _is_hopeless(error: OSError) -> bool:
    return error.errno not in _PASSING


class Outgoing:
    """One connection on its way: it reaches the peer, proves itself, and tries again while that may help.

    Args:
        hello: Who connects to whom, and for what.
        peer: The target's address.
        own: This rank's address; TCP leaves from it, so that the chosen interface is the one used.
        local: Whether to go through the peer's Unix socket in place of TCP.
        credentials: The group's.
        selector: Tells when to `advance`; the connection registers itself, with itself as its data.
        is_hopeless: Says of a failed try whether another one is of no use.

    Attributes:
        due: When to `start`, in seconds of `time.monotonic()`.
        trouble: Why the last try failed; empty if none has.
    """

    def __init__(
        self,
        hello: Hello,
        peer: Address,
        own: Address,
        local: bool,
        credentials: Credentials,
        selector: selectors.BaseSelector,
        is_hopeless: Callable[[OSError], bool] = _is_hopeless,
    ) -> None:
        self.hello = hello
        self.due = 0.0
        self.trouble = ""
        self._peer = peer
        self._own = own
        self._local = local
        self._credentials = credentials
        self._selector = selector
        self._is_hopeless = is_hopeless
        self._sock: socket.socket | None = None
        self._pause = _FIRST_PAUSE
        self._proof: Proof | None = None
        self._proven = False
        self._arrived = b""

    @property
    def place(self) -> str:
        """Where the connection goes to, for messages."""
        return "its Unix socket" if self._local else _endpoint(self._peer.ip, self._peer.port)

    def start(self) -> bool:
        """Begin a try; True if it is under way, False if it has failed and is due again later.

        Raises:
            RendezvousError: The peer can't be connected to, and waiting won't help.
        """
        self._proof, self._proven, self._arrived = None, False, b""
        try:
            family, place = self._destination()
            self._sock = sock = close_in_children(socket.socket(family, socket.SOCK_STREAM))
            sock.setblocking(False)
            if not self._local:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._leave_from_own(sock, family)
            number = sock.connect_ex(place)
            if number not in (0, errno.EINPROGRESS):
                raise OSError(number, os.strerror(number))
        except OSError as error:
            self._failed(error)
            return False
        self._selector.register(sock, selectors.EVENT_WRITE, self)
        return True

    def advance(self) -> socket.socket | None:
        """Go on after the selector has woken; gives the connection, blocking, once the peer has accepted it.

        When a try has failed, the connection is no longer `under_way`, and is due again later.

        Raises:
            RefusedError: The peer refuses, or isn't who it should be.
            RendezvousError: The peer can't be connected to, and waiting won't help.
        """
        sock = self._sock
        if sock is None:
            return None
        try:
            if self._proof is None:
                self._reached(sock)
            elif self._read(sock):
                return self._done(sock)
        except BlockingIOError:
            pass
        except OSError as error:
            self._failed(error)
        return None

    @property
    def under_way(self) -> bool:
        """Say whether a try has begun and hasn't failed."""
        return self._sock is not None

    def close(self) -> None:
        """End the try that is under way."""
        sock, self._sock = self._sock, None
        if sock is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(sock)
            sock.close()

    def _destination(self) -> tuple[int, _Place]:
        if self._local:
            return socket.AF_UNIX, f"\0{self._peer.unix}"
        return _numeric(self._peer.ip, self._peer.port)

    def _leave_from_own(self, sock: socket.socket, family: int) -> None:
        own, place = _numeric(self._own.ip, 0)
        if own == family:
            sock.bind(place)

    def _reached(self, sock: socket.socket) -> None:
        number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number == 0 and not self._local and sock.getsockname() == sock.getpeername():
            # Nobody listens on the port, and the kernel happened to choose it for this very end.
            number = errno.ECONNREFUSED
        if number:
            raise OSError(number, os.strerror(number))
        if self._local and peer_uid(sock) != os.geteuid():
            raise RefusedError(
                f"the Unix socket of {self._peer.name(self.hello.target)} belongs to user {peer_uid(sock)}, this "
                f"process to user {os.geteuid()}: run all ranks of a host as one user"
            )
        self._proof = Proof(self._credentials, self.hello)
        self._selector.modify(sock, selectors.EVENT_READ, self)

    def _read(self, sock: socket.socket) -> bool:
        """Take in what has come; True when the peer has accepted."""
        expected = ANSWER_BYTES if self._proven else NONCE_BYTES
        chunk = sock.recv(expected - len(self._arrived))
        if not chunk:
            raise OSError(errno.ECONNRESET, "it ended the connection before it answered")
        self._arrived += chunk
        if len(self._arrived) < expected or self._proof is None:
            return False
        arrived, self._arrived = self._arrived, b""
        if self._proven:
            self._proof.check(arrived)
            return True
        # A connection this new takes so few bytes at once.
        sock.sendall(self._proof.message(arrived))
        self._proven = True
        return False

    def _done(self, sock: socket.socket) -> socket.socket:
        self._selector.unregister(sock)
        self._sock = None
        sock.setblocking(True)
        return sock

    def _failed(self, error: OSError) -> None:
        self.close()
        self.trouble = error.strerror or str(error)
        if self._is_hopeless(error):
            raise RendezvousError(self._hopeless(error)) from None
        self.due = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def _hopeless(self, error: OSError) -> str:
        sender, peer = self.hello.sender, self._peer.name(self.hello.target)
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return f"rank {sender} can't open more connections: {self.trouble}. Raise `ulimit -n`, or use fewer streams"
        text = f"rank {sender} can't connect to {peer} at {self.place}: {self.trouble}. "
        if error.errno != errno.ECONNREFUSED:
            return (
                f"{text}This rank's own address is {self._own.ip}; HPSEARCH_COMM_INTERFACE (or interface=) changes it"
            )
        text += "It listened before, so it has died or given up: its own output says why"
        if self._local:
            text += ". If it is on another machine, a copy of this one, set HPSEARCH_COMM_HOST (or host=) on each"
        return text


def _numeric(ip: str, port: int) -> tuple[int, _Place]:
    """Give the family and the address, without asking anybody for a name."""
    family, _, _, _, place = socket.getaddrinfo(ip, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0]
    return family, place


def _endpoint(ip: str, port: int) -> str:
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
