"""A socket that ends with the process that started the benchmark, whatever ends it, and the ranks with it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

_BACKLOG = 128
"""More than there are ranks: nobody accepts."""


@contextlib.contextmanager
def hold(directory: Path) -> Iterator[None]:
    """Hold what every rank connects to."""
    with socket.socket(socket.AF_UNIX) as line, _address(directory) as address:
        line.bind(address)
        line.listen(_BACKLOG)
        yield


def follow(directory: Path) -> None:
    """End this process when the one that started the benchmark ends, and clear up for it if it was killed."""
    line = socket.socket(socket.AF_UNIX)
    # Where nobody listens any more, the wait below ends at once.
    with contextlib.suppress(OSError), _address(directory) as address:
        line.connect(address)

    def wait() -> None:
        with contextlib.suppress(OSError):
            line.recv(1)
        shutil.rmtree(segments(directory), ignore_errors=True)
        shutil.rmtree(directory, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=wait, daemon=True, name="lifeline").start()


def segments(directory: Path) -> Path:
    """Return a folder in memory for Open MPI's segments; in /dev/shm itself they would outlive a killed run."""
    return Path("/dev/shm", directory.name)


@contextlib.contextmanager
def _address(directory: Path) -> Iterator[str]:
    """Yield the socket's name through a descriptor: a socket's name has at most 107 bytes, a path may have more."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/lifeline"
    finally:
        os.close(descriptor)
