"""A lane's output, in its attempt's directory, which is created once there is output."""

from __future__ import annotations

import contextlib
from pathlib import Path

from hpsearch.worker.attempt_log import LOG

__all__ = ["LaneLog"]


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
