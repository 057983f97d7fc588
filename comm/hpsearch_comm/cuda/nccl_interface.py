"""Has NCCL's own sockets use the interface that the user has chosen for the group.

NCCL takes it from the environment alone, from NCCL_SOCKET_IFNAME, and reads that once in a process, as its first
communicator is made.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

__all__ = ["bound_to"]

_VARIABLE = "NCCL_SOCKET_IFNAME"

_lock = threading.Lock()
_starting = 0
_before: str | None = None


@contextlib.contextmanager
def bound_to(interface: str | None) -> Iterator[None]:
    """Set the variable while a communicator is made, unless the user has; the last one puts the environment back.

    Args:
        interface: Its name, such as `eth0`; None leaves the choice to NCCL.
    """
    global _starting, _before
    with _lock:
        if not _starting:
            _before = os.environ.get(_VARIABLE)
        ours = interface is not None and not _before
        if ours and not _starting:
            os.environ[_VARIABLE] = f"={interface}"  # with "=" it is that name, and no prefix of names
        _starting += ours
    try:
        yield
    finally:
        if ours:
            with _lock:
                _starting -= 1
                if not _starting:
                    del os.environ[_VARIABLE]
                    if _before is not None:
                        os.environ[_VARIABLE] = _before
