"""The sockets by which other ranks reach this rank while the group forms."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import time
from collections.abc import Sequence

from hpsearch_comm.bootstrap.address import Address, host_identity
from hpsearch_comm.bootstrap.connector import Endpoint, family_of
from hpsearch_comm.bootstrap.inheritance import close_in_children
from hpsearch_comm.bootstrap.interface import local_address
from hpsearch_comm.errors import ConfigurationError

_QUEUE = 4096
"""Length of the kernel's queue of connections to accept (the kernel may have a lower limit)."""
_RETRY_SECONDS = 0.05


class Listener:
    """A TCP socket on one address of this host, and an abstract Unix socket for the ranks on the same host.

    It is created before the ranks know each other's addresses, and closed as soon as they are connected. Connections
    wait in the kernel's queue until `connect` accepts them. An abstract Unix socket has no file and ends with the
    process.

    Args:
        interface: Interface, address or network to listen on; None uses the route to `towards`.
        towards: The host of rank 0.
        host: Name of this host, to divide one machine into several hosts.

    Raises:
        ConfigurationError: There is no such interface or address.
    """

    def __init__(self, interface: str | None = None, towards: str | None = None, host: str | None = None) -> None:
        identity = host_identity(host)
        ip, name = local_address(towards, interface), f"hpsearch-comm-{secrets.token_hex(16)}"
        try:
            self._sockets = listen_all([(ip, 0), f"\0{name}"])
        except OSError as error:
            raise ConfigurationError(
                f"can't listen for the other ranks on {ip}: {error.strerror or error}. It must be an address of "
                "this host; set HPSEARCH_COMM_INTERFACE (or interface=) to another"
            ) from None
        port = self._sockets[0].getsockname()[1]
        self.address = Address(identity, socket.gethostname(), os.getpid(), ip, port, name)
        """The address by which other ranks reach this rank."""
        self._host = host

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """The listening sockets, TCP first; empty after `close`."""
        return tuple(self._sockets)

    def another(self) -> Listener:
        """Return a new listener with the same host and address, on another port."""
        return Listener(self.address.ip, host=self._host)

    def close(self) -> None:
        """Stop listening; connections that wait in the queue are reset."""
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()


def listen(endpoint: Endpoint, until: float = 0.0) -> socket.socket:
    """Open a listening socket, which forked children close.

    Args:
        endpoint: The endpoint to listen on.
        until: Until when to retry an endpoint in use, in seconds of `time.monotonic()`.

    Raises:
        OSError: The endpoint is in use, or isn't on this host.
    """
    while True:
        sock = close_in_children(socket.socket(family_of(endpoint), socket.SOCK_STREAM))
        try:
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if sock.family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(endpoint)
            sock.listen(_QUEUE)
            return sock
        except OSError as error:
            sock.close()
            if error.errno != errno.EADDRINUSE or time.monotonic() >= until:
                raise
        time.sleep(_RETRY_SECONDS)


def listen_all(endpoints: Sequence[Endpoint], until: float = 0.0) -> list[socket.socket]:
    """Open a listening socket for each endpoint, as `listen` does. If one fails, all are closed."""
    with contextlib.ExitStack() as opened:
        listening = [opened.enter_context(listen(endpoint, until)) for endpoint in endpoints]
        opened.pop_all()
    return listening
