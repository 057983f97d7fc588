"""The client's side of a connection: open it, and run the handshake."""

from __future__ import annotations

import asyncio
import errno
import os
import socket

from hpsearch_comm.bootstrap.acceptor import RESET, peer_uid
from hpsearch_comm.bootstrap.handshake import ANSWER_BYTES, NONCE_BYTES, Credentials, Hello, Proof
from hpsearch_comm.bootstrap.inheritance import close_in_children
from hpsearch_comm.bootstrap.tasks import receive
from hpsearch_comm.errors import RefusedError

Endpoint = tuple[str, int] | str
"""An IPv4 or IPv6 address and a port, or the name of a Unix socket."""

_FINAL = (errno.ECONNREFUSED, errno.EMFILE, errno.ENFILE)


def may_pass(error: OSError) -> bool:
    """Return whether another try may succeed: a peer is overloaded, or a route or a link is just coming up."""
    return error.errno not in _FINAL


async def open_connection(
    hello: Hello, target: Endpoint, credentials: Credentials, seconds: float | None = None, source: str | None = None
) -> tuple[socket.socket, bytes]:
    """Open a connection, and prove the secret.

    Args:
        hello: The hello of the handshake: sender, target and kind of the connection.
        target: The endpoint to connect to.
        credentials: The group's credentials.
        seconds: When to give up; None for never.
        source: Local address to bind to, so that the chosen interface is used. None leaves the choice to the route.

    Returns:
        The socket, in non-blocking mode, and the client's nonce.

    Raises:
        RefusedError: The peer refuses the connection, or fails to authenticate.
        OSError: The peer can't be reached, or the handshake isn't complete in time.
    """
    sock = close_in_children(socket.socket(family_of(target), socket.SOCK_STREAM))
    try:
        sock.setblocking(False)
        async with asyncio.timeout(seconds):
            await _reach(sock, target, hello, source)
            proof = Proof(credentials, hello)
            message = proof.message(await receive(sock, NONCE_BYTES))
            # The buffer of a new connection has room for these few bytes.
            if sock.send(message) < len(message):
                raise OSError(errno.ENOBUFS, "it didn't take a few bytes at once")
            proof.check(await receive(sock, ANSWER_BYTES))
    except BaseException as error:
        sock.close()
        if isinstance(error, TimeoutError) and error.errno is None:
            raise TimeoutError("the other side was silent in the middle of a handshake") from None
        raise
    return sock, proof.nonce


async def _reach(sock: socket.socket, target: Endpoint, hello: Hello, source: str | None) -> None:
    if isinstance(target, str):
        # Not by asyncio, which takes a full queue (EAGAIN) for a connection.
        sock.connect(target)
        if peer_uid(sock) != os.geteuid():
            raise RefusedError(
                f"the Unix socket of rank {hello.target} belongs to user {peer_uid(sock)}, this process to user "
                f"{os.geteuid()}: run all ranks of a host as one user"
            )
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if source is not None and family_of((source, 0)) == sock.family:
        sock.bind((source, 0))
    try:
        await asyncio.get_running_loop().sock_connect(sock, target)
    except OSError as error:  # asyncio replaces the reason
        raise OSError(error.errno, os.strerror(error.errno or 0)) from None
    if sock.getsockname()[:2] == target:
        # Nobody listens on the port, and the kernel chose the same port for our end: the socket is connected to itself,
        # and would keep the peer from opening the port.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


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
