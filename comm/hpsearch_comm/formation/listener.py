"""The sockets by which the other ranks reach this one while the group forms."""

from __future__ import annotations

import os
import secrets
import socket

from hpsearch_comm.errors import ConfigurationError
from hpsearch_comm.formation.address import Address, host_identity
from hpsearch_comm.formation.inheritance import close_in_children
from hpsearch_comm.formation.interface import local_address

__all__ = ["Listener"]

_QUEUE = 4096
"""Connections that the kernel keeps until they are accepted; it takes its own limit where that is lower."""


class Listener:
    """A TCP socket on one address of this host, and an abstract Unix socket for the ranks on the same host.

    It is made before the ranks know each other's addresses, and closed as soon as they are connected. Connections wait
    in the kernel's queue until `connect` accepts them. An abstract Unix socket has no file: it ends with the process.

    Args:
        interface: The interface, address or network to listen on, in place of the one that leads to `towards`.
        towards: The host of rank 0.
        host: Splits one machine into several hosts, by a name for this one.

    Raises:
        ConfigurationError: There is no such interface or address.
    """

    def __init__(self, interface: str | None = None, towards: str | None = None, host: str | None = None) -> None:
        identity = host_identity(host)
        ip = local_address(towards, interface)
        self._sockets: list[socket.socket] = []
        try:
            self._listen_on(ip)
            name = f"hpsearch-comm-{secrets.token_hex(16)}"
            unix = self._new(socket.AF_UNIX)
            unix.bind(f"\0{name}")
            unix.listen(_QUEUE)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise ConfigurationError(f"can't listen for the other ranks: {error.strerror or error}") from error
            raise
        port = self._sockets[0].getsockname()[1]
        self.address = Address(identity, _hostname(), os.getpid(), ip, port, name)
        """Where the other ranks reach this one."""

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """The listening sockets, TCP first; none once it is closed."""
        return tuple(self._sockets)

    def close(self) -> None:
        """Listen no longer; connections that wait in the queue are reset."""
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()

    def _listen_on(self, ip: str) -> None:
        family, _, _, _, place = socket.getaddrinfo(ip, 0, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0]
        sock = self._new(family)
        try:
            sock.bind(place)
        except OSError as error:
            raise ConfigurationError(
                f"can't listen on {ip}: {error.strerror}. It must be an address of this host; set "
                "HPSEARCH_COMM_INTERFACE (or interface=) to another"
            ) from None
        sock.listen(_QUEUE)

    def _new(self, family: int) -> socket.socket:
        sock = close_in_children(socket.socket(family, socket.SOCK_STREAM))
        self._sockets.append(sock)
        return sock


def _hostname() -> str:
    name = "".join(char for char in socket.gethostname() if char.isprintable())
    return name[:255] or "unnamed host"
