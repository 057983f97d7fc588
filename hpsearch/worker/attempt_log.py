"""The output of attempts and lanes: a shared file, which is moved to the attempt's directory once it has content.

Creating a directory and a file for every attempt costs more than a trial that prints nothing.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

__all__ = ["LOG", "AttemptLog", "LaneLog", "file_log"]

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


class LaneLog:
    """The output of one lane, whose turns alternate with others'.

    Args:
        at_hand: A file that all lanes of a process write to in turn, until they have written something.
        directory: The attempt's.
        shared: Other processes write to the same log in the directory.
    """

    def __init__(self, at_hand: Path, directory: Path, *, shared: bool = False) -> None:
        self._own = directory / LOG
        self._shared = shared
        self.path = at_hand
        """The file for the lane's next turn."""

    def file(self) -> None:
        """Move the output of a turn to the attempt's directory, at the turn's end."""
        if self.path != self._own:
            with contextlib.suppress(FileNotFoundError):
                if self.path.stat().st_size:
                    if self._shared:
                        with self._made().open("ab") as log:
                            log.write(self.path.read_bytes())
                        self.path.unlink()
                    else:
                        self.path.rename(self._made())
                    self.path = self._own

    def add(self, text: str) -> None:
        """Append text; errors are ignored."""
        with contextlib.suppress(OSError):
            if text:
                with self._made().open("a", encoding="utf-8", errors="backslashreplace") as file:
                    file.write(text)
                self.path = self._own

    def _made(self) -> Path:
        self._own.parent.mkdir(parents=True, exist_ok=True)
        return self._own
