"""Keep a group's sockets out of forked children.

A DataLoader's workers are forked from a rank and inherit copies of its sockets. If the rank were killed, its peers
would see no end of file until the last worker has ended, and would not detect the death. So a child closes its copies
first.
"""

from __future__ import annotations

import os
import socket
import weakref

_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def close_in_children(sock: socket.socket) -> socket.socket:
    """Close this socket in every child that is forked from now on; the parent's socket stays open.

    Call it as soon as the socket exists. It applies to this object, not to its `dup()` or a `detach()`ed descriptor.
    Programs started with `subprocess` don't need it: Python's sockets are closed on exec.

    Returns:
        The same socket.
    """
    _sockets.add(sock)
    return sock


def _close_copies() -> None:
    # Not shutdown(): it would also end the parent's connection, which the copy shares.
    for sock in list(_sockets):
        sock.close()
    _sockets.clear()


os.register_at_fork(after_in_child=_close_copies)
