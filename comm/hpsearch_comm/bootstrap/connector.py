"""The client's side of a connection: open it, and run the handshake."""

from __future__ import annotations

import errno
import os
import select
import socket

from hpsearch_comm.bootstrap.acceptor import RESET, peer_uid
from hpsearch_comm.bootstrap.handshake import ANSWER_BYTES, NONCE_BYTES, Credentials, Hello, Proof
from hpsearch_comm.bootstrap.inheritance import close_in_children
from hpsearch_comm.bootstrap.tasks import Task, ready, received
from hpsearch_comm.errors import RefusedError

Endpoint = tuple[str, int] | str
"""An IPv4 or IPv6 address and a port, or the name of a Unix socket."""

_PASSING = {
    None,
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


def may_pass(error: OSError) -> bool:
    """Return whether another try may succeed: a peer is overloaded, or a route or a link is just coming up."""
    return error.errno in _PASSING


def open_connection(
    hello: Hello, target: Endpoint, credentials: Credentials, until: float, source: str | None = None
) -> Task[tuple[socket.socket, bytes]]:
    """Open a connection, and prove the secret.

    Args:
        hello: The hello of the handshake: sender, target and kind of the connection.
        target: The endpoint to connect to.
        credentials: The group's credentials.
        until: When to give up, in seconds of `time.monotonic()`.
        source: Local address to bind to, so that the chosen interface is used. None leaves the choice to the route.

    Returns:
        The socket, set to block, and the client's nonce.

    Raises:
        RefusedError: The peer refuses the connection, or fails to authenticate.
        OSError: The peer can't be reached, or the handshake isn't complete in time.
    """
    sock = close_in_children(socket.socket(family_of(target), socket.SOCK_STREAM))
    try:
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if source is not None and family_of((source, 0)) == sock.family:
                sock.bind((source, 0))
        number = sock.connect_ex(target)
        if number not in (0, errno.EINPROGRESS):
            raise OSError(number, os.strerror(number))
        yield from ready(sock, select.EPOLLOUT, until)
        _check_reached(sock, hello)
        proof = Proof(credentials, hello)
        message = proof.message((yield from received(sock, NONCE_BYTES, until)))
        # The buffer of a new connection has room for these few bytes.
        if sock.send(message) < len(message):
            raise OSError(errno.ENOBUFS, "it didn't take a few bytes at once")
        proof.check((yield from received(sock, ANSWER_BYTES, until)))
        sock.setblocking(True)
    except BaseException:
        sock.close()
        raise
    return sock, proof.nonce


def _check_reached(sock: socket.socket, hello: Hello) -> None:
    number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if number == 0 and sock.family != socket.AF_UNIX and sock.getsockname() == sock.getpeername():
        # Nobody listens on the port, and the kernel chose the same port for our end: the socket is connected to itself,
        # and would keep the peer from opening the port.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        number = errno.ECONNREFUSED
    if number:
        raise OSError(number, os.strerror(number))
    if sock.family == socket.AF_UNIX and peer_uid(sock) != os.geteuid():
        raise RefusedError(
            f"the Unix socket of rank {hello.target} belongs to user {peer_uid(sock)}, this process to user "
            f"{os.geteuid()}: run all ranks of a host as one user"
        )


def name_endpoint(target: Endpoint) -> str:
    """Return the name of an endpoint, for messages."""
    if isinstance(target, str):
        return "its Unix socket"
    ip, port = target
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def family_of(endpoint: Endpoint) -> socket.AddressFamily:
    """Return the socket family for an endpoint."""
    if isinstance(endpoint, str):
        return socket.AF_UNIX
    return socket.AF_INET6 if ":" in endpoint[0] else socket.AF_INET
