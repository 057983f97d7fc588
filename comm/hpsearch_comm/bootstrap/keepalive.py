"""Has the kernel notice within seconds that a peer's host has gone, which sends no end of file."""

from __future__ import annotations

import socket

__all__ = ["tell_when_gone"]

_KEEPALIVE = ((socket.TCP_KEEPIDLE, 2), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 4))
_UNANSWERED = 6000
"""Milliseconds after which a host that answers nothing counts as gone."""


def tell_when_gone(sock: socket.socket) -> None:
    """Have a TCP connection end when the other host answers no more."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, number in _KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, number)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED)
