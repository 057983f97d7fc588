"""Keep a group's sockets out of forked children.

A data loader's workers are forked from a rank and would hold copies of its sockets. Were the rank killed, its peers
would see no end of file until the last worker is gone: the death would be hidden. So a child closes its copies first.
"""

from __future__ import annotations

import os
import socket
import weakref

_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def close_in_children(sock: socket.socket) -> socket.socket:
    """Close this socket in every child that is forked from now on; the parent's stays as it is.

    Call it as soon as the socket exists. It holds for this object, not for its `dup()` or a `detach()`ed descriptor. A
    program started by `subprocess` needs nothing: Python's sockets are closed on exec.

    Returns:
        The same socket.
    """
    _sockets.add(sock)
    return sock


def _close_copies() -> None:
    # Never shutdown(): it would end the parent's connection, which the copy shares.
    for sock in list(_sockets):
        sock.close()
    _sockets.clear()


os.register_at_fork(after_in_child=_close_copies)
