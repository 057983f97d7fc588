"""The output of attempts: a shared file, which is moved to the attempt's directory once it has content.

Creating a directory and a file for every attempt costs more than a trial that prints nothing.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

__all__ = ["LOG", "AttemptLog", "file_log"]

LOG = "output.log"


class AttemptLog:
    """The output of attempts in sequence. `file` may be called from another thread.

    Args:
        at_hand: The shared file; None: each attempt writes to its own from the start.
    """

    def __init__(self, at_hand: Path | None) -> None:
        self._at_hand = at_hand
        self._directory: str | None = None
        self._guard = threading.Lock()

    def begin(self, directory: str) -> Path:
        """Begin an attempt; return the file for its output."""
        if self._at_hand is None:
            own = Path(directory, LOG)
            own.parent.mkdir(parents=True, exist_ok=True)
            return own
        with self._guard:
            self._directory = directory
        return self._at_hand

    def file(self) -> None:
        """Move the running attempt's output, if any, to its directory, where later output is appended."""
        with self._guard:
            if self._at_hand is not None and self._directory is not None:
                file_log(self._at_hand, Path(self._directory))

    def end(self) -> None:
        """End the attempt; an empty file stays for the next one."""
        with contextlib.suppress(FileNotFoundError):
            if self._at_hand is not None and self._directory is not None and self._at_hand.stat().st_size:
                self.file()
        with self._guard:
            self._directory = None

    def close(self) -> None:
        """Delete the shared file."""
        if self._at_hand is not None:
            self._at_hand.unlink(missing_ok=True)


def file_log(log: Path, directory: Path) -> None:
    """Append a log, if it exists, to the one in an attempt's directory."""
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / LOG
    with contextlib.suppress(FileNotFoundError):
        if not target.exists():
            log.rename(target)
            return
        content = log.read_bytes()
        with target.open("ab") as file:
            file.write(content)
        log.unlink()
