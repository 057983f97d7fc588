"""One attempt to open a TCP connection to a port that may not be listened on yet."""

from __future__ import annotations

import errno
import socket
import struct
import time

from hpsearch_comm.formation.inheritance import close_in_children

__all__ = ["dial", "socket_for"]

_RESET = struct.pack("ii", 1, 0)


def dial(address: str, port: int, deadline: float) -> socket.socket:
    """Connect once.

    Args:
        address: Textual IPv4 or IPv6 address.
        port: Its port.
        deadline: When to give up, in seconds of `time.monotonic()`.

    Raises:
        OSError: Nobody listens there, or the deadline passed.
    """
    sock = close_in_children(socket_for(address))
    try:
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        sock.connect((address, port))
        if sock.getsockname() == sock.getpeername():
            # The kernel may give a free port of this host to the very connection that looks for it: it has met itself,
            # and would keep rank 0 from opening the port.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
    except BaseException:
        sock.close()
        raise
    return sock


def socket_for(address: str) -> socket.socket:
    """Make a TCP socket of the address's family."""
    return socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
