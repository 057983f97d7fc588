"""Locks that the kernel lets go of with the process that holds them, however it ends."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path

from hpsearch.journal.filesystem import identity

__all__ = ["Lock"]

_LOOK_SECONDS = 0.02

_held: set[Lock] = set()
"""Exclusive locks of this process."""


def _close_held() -> None:
    """Close locks that a forked child inherited, for example a data loader that outlives its parent by seconds.

    A lock belongs to the open file, so it would be held until the last process closes it.
    """
    for lock in list(_held):
        lock.close()


os.register_at_fork(after_in_child=_close_held)


class Lock:
    """An open file that may be locked, by `flock`.

    Args:
        path: A file, or a directory.
        make: Make the file where it is missing; it is opened for writing, as an exclusive lock over NFS demands.

    Raises:
        OSError: It can't be opened.
    """

    def __init__(self, path: Path, *, make: bool = False) -> None:
        self.path = path
        # Who holds it writes a name into it: never into what a study that was made elsewhere links to.
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW if make else os.O_RDONLY, 0o666)

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock."""
        _held.discard(self)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def share(self, patience: float = 0.0) -> bool:
        """Hold it together with others who do; False when somebody holds it alone after `patience` seconds."""
        return self._lock(fcntl.LOCK_SH, patience)

    def take(self, patience: float = 0.0) -> bool:
        """Hold it alone; False when others hold it after `patience` seconds."""
        if self._lock(fcntl.LOCK_EX, patience):
            _held.add(self)
            return True
        return False

    def in_place(self) -> bool:
        """Return whether a process that opens the path now would see this lock."""
        return identity(self.path) == identity(self._file)

    def read(self) -> str:
        """Return the file's text."""
        return os.pread(self._file, 4096, 0).decode("utf-8", "replace").strip()

    def write(self, text: str) -> None:
        """Make this the file's text."""
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, text.encode("utf-8", "replace"), 0)

    def _lock(self, kind: int, patience: float) -> bool:
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(self._file, kind | fcntl.LOCK_NB)
                return True
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_SECONDS)
