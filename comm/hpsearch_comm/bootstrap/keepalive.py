"""Has the kernel notice that a peer's host has gone, which sends no end of file.

The kernels ask each other, and not the processes: a process that computes or is stopped, on a host that answers, is
never taken for dead. A host may be silent for a while and live: a virtual machine that migrates, a network that is
down.
"""

from __future__ import annotations

import math
import socket

__all__ = ["tell_when_gone"]

_PROBES = 6
_MOST_SECONDS = 32767
"""The kernel's highest for TCP_KEEPIDLE and TCP_KEEPINTVL: man 7 tcp."""
_MOST_MILLISECONDS = 2**31 - 1


def tell_when_gone(sock: socket.socket, silence: float) -> None:
    """Have a TCP connection end when the other host answers no more.

    Args:
        sock: The connection.
        silence: Seconds for which the other host may answer nothing. The kernel asks at most once a second.
    """
    interval = min(max(1, math.ceil(silence / _PROBES)), _MOST_SECONDS)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, interval)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
    # Where this is set, the kernel ends the connection by it, whatever the number of probes: RFC 5482, tcp(7).
    milliseconds = min(max(1, math.ceil(silence * 1000)), _MOST_MILLISECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
