"""The file of one rank's events.

It is a JSON array of Chrome's Trace Event Format, which chrome://tracing and https://ui.perfetto.dev load. It lacks its
closing bracket until the rank is done; the format allows that, so the part of a crashed rank loads as it is. Each event
stands on a line of its own.

A trace shows what a training does, and its path may lie where others write, such as /tmp: files are made anew, for
their user alone, and whatever stands in their place is replaced, never opened.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path

from hpsearch_comm.errors import ConfigurationError

_log = logging.getLogger(__name__)


def part_path(path: Path, rank: int) -> Path:
    """Return the file of one rank's events: `trace.rank3.json` beside `trace.json`.

    Raises:
        ConfigurationError: There is a directory in the trace's place.
    """
    if path.is_dir():
        raise ConfigurationError(f"the timeline's path must be a file, got the directory {path} (rank {rank})")
    return path.with_name(f"{path.stem}.rank{rank}{path.suffix or '.json'}")


def scratch_beside(path: Path) -> Path:
    """Return a name in the same directory that nobody can guess, for a file that is to replace this one."""
    return path.with_name(f".{secrets.token_hex(8)}.scratch")


def create_private(path: Path) -> int:
    """Make a file that its user alone can read; return its descriptor, open for writing.

    Raises:
        FileExistsError: Something stands there, be it a link.
        OSError: It can't be made.
    """
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


class TraceFile:
    """A file of events, appended as they come. It replaces one of the same name.

    Args:
        path: The file.
        rank: Whose events these are.
        first: JSON texts of the first events.

    Raises:
        ConfigurationError: The file can't be written.
    """

    def __init__(self, path: Path, rank: int, first: Sequence[str]) -> None:
        self.path = path
        self.lost = 0
        """Events that couldn't be written, because the disk was full for instance."""
        scratch = scratch_beside(self.path)
        try:
            self._file = create_private(scratch)
            try:
                scratch.replace(self.path)
            except OSError:
                os.close(self._file)
                scratch.unlink()
                raise
        except OSError as error:
            raise ConfigurationError(
                f"the timeline's path must be writable: rank {rank} on {socket.gethostname()} can't write "
                f"{self.path}: {error.strerror}. Give a path in a directory that exists on each host"
            ) from error
        self._size = 0
        self._write("[\n" + "".join(f"{event},\n" for event in first))

    def append(self, events: Sequence[str]) -> None:
        """Write JSON texts of events. A disk that fails costs events, never the training."""
        if self.lost or not self._write("".join([f"{event},\n" for event in events])):
            self.lost += len(events)

    def close(self, last: str) -> None:
        """Write the last event and the closing bracket. Calling it again does nothing."""
        if self._file >= 0:
            self._write(f"{last}\n]\n")
            os.close(self._file)
            self._file = -1

    def _write(self, text: str) -> bool:
        data = remaining = memoryview(text.encode())
        try:
            while remaining:
                remaining = remaining[os.pwrite(self._file, remaining, self._size + len(data) - len(remaining)) :]
        except OSError as error:
            _log.warning("the timeline %s is cut short: %s", self.path, error.strerror)
            with contextlib.suppress(OSError):  # so that no half of an event stands before what may still come
                os.ftruncate(self._file, self._size)
            return False
        self._size += len(data)
        return True
