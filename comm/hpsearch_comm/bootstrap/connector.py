"""The connector: it opens a connection and runs the client's side of the handshake. Its owner starts each try."""

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
"""Errors that may be gone at the next try: an overloaded peer, or a route or link that is just coming up."""


class Connector:
    """An outgoing connection.

    Args:
        hello: The hello of the handshake: sender, target and kind of the connection.
        target: The endpoint to connect to.
        credentials: The group's credentials.
        selector: Selector that shows when to `advance`. The connector registers its socket, with itself as data.
        source: Local address to bind to, so that the chosen interface is used. None leaves the choice to the route.

    Attributes:
        due: When to `start`, in seconds of `time.monotonic()`.
        last_error: Error message of the last failed try; empty if none has failed.
        errno: Error number of the last failed try; 0 if none has failed.
        refused_since: Since when the target has refused connections, in the same seconds; infinity if it doesn't.
        nonce: The client's nonce of the last try.
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
        """Name of the target, for messages."""
        if isinstance(self._target, str):
            return "its Unix socket"
        ip, port = self._target
        return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"

    @property
    def in_progress(self) -> bool:
        """Return whether a try has started and hasn't failed."""
        return self._sock is not None

    @property
    def is_transient(self) -> bool:
        """Return whether another try may succeed after the last error."""
        return self.errno in _PASSING

    def start(self) -> None:
        """Start a try. If it fails at once, `in_progress` is false afterwards."""
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
        """Continue after the selector reports an event. Once the peer has accepted, return the socket, set to block.

        Raises:
            RefusedError: The peer refuses the connection, or fails to authenticate.
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
        """Try once, and wait for the result. The connector must have its own selector.

        Raises:
            RefusedError: The peer refuses the connection, or fails to authenticate.
            OSError: The peer can't be reached, or the handshake isn't complete at the deadline.
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
        """Abort the current try, if there is one."""
        sock, self._sock = self._sock, None
        if sock is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(sock)
            sock.close()

    def _shake_hands(self, sock: socket.socket) -> Iterator[None]:
        """Run the client's side of an open connection. Yield whenever data from the peer is needed."""
        self._check_reached(sock)
        proof = Proof(self._credentials, self.hello)
        self.nonce = proof.nonce
        self._selector.modify(sock, selectors.EVENT_READ, self)
        message = proof.message((yield from received(sock, NONCE_BYTES)))
        # The buffer of a new connection has room for these few bytes.
        if sock.send(message) < len(message):
            raise OSError(errno.ENOBUFS, "it didn't take a few bytes at once")
        proof.check((yield from received(sock, ANSWER_BYTES)))

    def _check_reached(self, sock: socket.socket) -> None:
        number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number == 0 and sock.family != socket.AF_UNIX and sock.getsockname() == sock.getpeername():
            # Nobody listens on the port, and the kernel chose the same port for our end: the socket is connected to
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
    """Return the socket family for an endpoint."""
    if isinstance(endpoint, str):
        return socket.AF_UNIX
    return socket.AF_INET6 if ":" in endpoint[0] else socket.AF_INET
