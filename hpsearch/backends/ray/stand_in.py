"""A temporary folder in place of a study's directory, on a node that doesn't see that."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from pathlib import Path

from hpsearch.journal.locks import Lock

__all__ = ["StandIn"]

_PATIENCE_SECONDS = 1.0

_NAME = re.compile(r"hpsearch-[0-9a-f]{32}")


class StandIn:
    """A folder in the temporary directory, created when it is needed, and locked as long as its worker lives.

    The worker's guardian deletes it. If both were killed, the lock is free, and the next worker that creates a folder
    deletes this one.

    Args:
        mark: Of the worker: 32 hexadecimal digits.
    """

    def __init__(self, mark: str) -> None:
        self.path = Path(tempfile.gettempdir(), f"hpsearch-{mark}")
        self._lock: Lock | None = None

    def make(self) -> Path:
        """Return the folder; create it if it doesn't exist."""
        if self._lock is None:
            _remove_deserted(self.path.parent)
            self._lock = self._make_locked()
        return self.path

    def clear(self) -> None:
        """Delete the folder's contents."""
        if self._lock is not None:
            for entry in self.path.iterdir():
                shutil.rmtree(entry, ignore_errors=True)

    def _make_locked(self) -> Lock:
        while True:
            self.path.mkdir(mode=0o700, exist_ok=True)
            lock = Lock(self.path)
            # Another worker may have found it before it was locked, and be deleting it.
            if lock.take(_PATIENCE_SECONDS) and lock.in_place():
                return lock
            lock.close()


def _remove_deserted(parent: Path) -> None:
    """Delete the folders that no living process holds."""
    for folder in parent.iterdir():
        if _NAME.fullmatch(folder.name) is None or folder.is_symlink() or not folder.is_dir():
            continue
        # Another worker deletes it at the same time, or it is another user's.
        with contextlib.suppress(OSError), Lock(folder) as lock:
            if lock.take():
                shutil.rmtree(folder, ignore_errors=True)
