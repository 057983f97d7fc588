"""The one connector: opens a connection, proves itself, and tries again whenever its owner has it start."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import selectors
import socket
import time
from collections.abc import Iterator

from hpsearch_comm.bootstrap.acceptor import RESET, peer_uid, received
from hpsearch_comm.bootstrap.handshake import ANSWER_BYTES, NONCE_BYTES, Credentials, Hello, Proof
from hpsearch_comm.bootstrap.inheritance import close_in_children
from hpsearch_comm.errors import RefusedError

Endpoint = tuple[str, int] | str
"""An IPv4 or IPv6 address and a port, or the name of a Unix socket."""

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0

_PASSING = {
    0,
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


class Connector:
    """One connection on its way.

    Args:
        hello: Who connects to whom, and for what.
        target: Where to.
        credentials: The group's.
        selector: Tells when to `advance`; the connection registers itself, with itself as its data.
        source: This rank's address; TCP leaves from it, so that the chosen interface is the one used. None leaves it to
            the route.

    Attributes:
        due: When to `start`, in seconds of `time.monotonic()`.
        last_error: Why the last try failed; empty while none has.
        errno: The number of that error; 0 while none has.
        refused_since: Since when nobody has listened at the place, in those seconds; infinity if somebody did.
        nonce: The client's own of the last try.
    """

    def __init__(
        self,
        hello: Hello,
        target: Endpoint,
        credentials: Credentials,
        selector: selectors.BaseSelector,
        source: str | None = None,
    ) -> None:
        self.hello = hello
        self.due = 0.0
        self.last_error = ""
        self.errno = 0
        self.refused_since = math.inf
        self.nonce = b""
        self._target = target
        self._credentials = credentials
        self._selector = selector
        self._source = source
        self._sock: socket.socket | None = None
        self._pause = _FIRST_PAUSE
        self._handshake: Iterator[None] = iter(())

    @property
    def target_name(self) -> str:
        """Where the connection goes to, for messages."""
        if isinstance(self._target, str):
            return "its Unix socket"
        ip, port = self._target
        return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"

    @property
    def in_progress(self) -> bool:
        """Return whether a try has begun and hasn't failed."""
        return self._sock is not None

    @property
    def is_transient(self) -> bool:
        """Return whether another try may do better than the last one."""
        return self.errno in _PASSING

    def start(self) -> None:
        """Begin a try; one that fails at once is no longer `in_progress`."""
        try:
            self._sock = sock = close_in_children(socket.socket(family_of(self._target), socket.SOCK_STREAM))
            sock.setblocking(False)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._source is not None and family_of((self._source, 0)) == sock.family:
                    sock.bind((self._source, 0))
            number = sock.connect_ex(self._target)
            if number not in (0, errno.EINPROGRESS):
                raise OSError(number, os.strerror(number))
            self._selector.register(sock, selectors.EVENT_WRITE, self)
            self._handshake = self._shake_hands(sock)
        except OSError as error:
            self._fail(error)

    def advance(self) -> socket.socket | None:
        """Go on after the selector has woken; return the connection, blocking, once the peer has accepted it.

        Raises:
            RefusedError: The peer refuses, or isn't who it should be.
        """
        sock = self._sock
        if sock is None:
            return None
        try:
            next(self._handshake)
        except StopIteration:
            self._selector.unregister(sock)
            self._sock = None
            sock.setblocking(True)
            return sock
        except OSError as error:
            self._fail(error)
        return None

    def connect(self, deadline: float) -> socket.socket:
        """Try once, on a selector of its own, and wait for what comes of it.

        Raises:
            RefusedError: The peer refuses, or isn't who it should be.
            OSError: It can't be reached, or has said too little at the deadline.
        """
        self.start()
        try:
            while self.in_progress:
                if not self._selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError("the other side was silent in the middle of a handshake")
                sock = self.advance()
                if sock is not None:
                    return sock
            raise OSError(self.errno, self.last_error)
        finally:
            self.close()

    def close(self) -> None:
        """End the try that is under way."""
        sock, self._sock = self._sock, None
        if sock is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(sock)
            sock.close()

    def _shake_hands(self, sock: socket.socket) -> Iterator[None]:
        """Do the client's side, from the moment when the connection is open; yields wherever the peer must speak."""
        self._check_reached(sock)
        proof = Proof(self._credentials, self.hello)
        self.nonce = proof.nonce
        self._selector.modify(sock, selectors.EVENT_READ, self)
        message = proof.message((yield from received(sock, NONCE_BYTES)))
        # A connection this new takes so few bytes at once.
        if sock.send(message) < len(message):
            raise OSError(errno.ENOBUFS, "it didn't take a few bytes at once")
        proof.check((yield from received(sock, ANSWER_BYTES)))

    def _check_reached(self, sock: socket.socket) -> None:
        number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number == 0 and sock.family != socket.AF_UNIX and sock.getsockname() == sock.getpeername():
            # Nobody listens on the port, and the kernel happened to choose it for this very end: the connection has met
            # itself, and would keep the peer from opening the port.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            number = errno.ECONNREFUSED
        if number:
            raise OSError(number, os.strerror(number))
        self.refused_since = math.inf
        if sock.family == socket.AF_UNIX and peer_uid(sock) != os.geteuid():
            raise RefusedError(
                f"the Unix socket of rank {self.hello.target} belongs to user {peer_uid(sock)}, this process to user "
                f"{os.geteuid()}: run all ranks of a host as one user"
            )

    def _fail(self, error: OSError) -> None:
        self.close()
        self.last_error = error.strerror or str(error)
        self.errno = error.errno or 0
        now = time.monotonic()
        self.refused_since = min(self.refused_since, now) if error.errno == errno.ECONNREFUSED else math.inf
        self.due = now + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)


def family_of(endpoint: Endpoint) -> socket.AddressFamily:
    """Return what kind of socket leads to a place."""
    if isinstance(endpoint, str):
        return socket.AF_UNIX
    return socket.AF_INET6 if ":" in endpoint[0] else socket.AF_INET
