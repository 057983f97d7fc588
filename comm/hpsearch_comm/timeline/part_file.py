"""The file of one rank's events.

It is a JSON array in Chrome's Trace Event Format, which chrome://tracing and https://ui.perfetto.dev load. The closing
bracket is missing until the rank has ended. The format allows that, so the part of a crashed rank is valid. Each event
is on a separate line.

A trace shows details of a training, and its directory may be writable by others, such as /tmp. So files are created
new and readable only by their user. An existing file is replaced, never opened.
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
    """Return the file of one rank's events: for `trace.json`, `trace.rank3.json` in the same directory.

    Raises:
        ConfigurationError: The path is a directory.
    """
    if path.is_dir():
        raise ConfigurationError(f"the timeline's path must be a file, got the directory {path} (rank {rank})")
    return path.with_name(f"{path.stem}.rank{rank}{path.suffix or '.json'}")


def scratch_beside(path: Path) -> Path:
    """Return an unguessable path in the same directory, for a temporary file that will replace `path`."""
    return path.with_name(f".{secrets.token_hex(8)}.scratch")


def create_private(path: Path) -> int:
    """Create a file that only its user can read; return its descriptor, open for writing.

    Raises:
        FileExistsError: The path exists, also as a link.
        OSError: The file can't be created.
    """
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


class TraceFile:
    """A file to which events are appended. It replaces an existing file of the same name.

    Args:
        path: The file.
        rank: The rank whose events are written.
        first: JSON texts of the first events.

    Raises:
        ConfigurationError: The file can't be written.
    """

    def __init__(self, path: Path, rank: int, first: Sequence[str]) -> None:
        self.path = path
        self.lost = 0
        """Number of events that couldn't be written, for example because the disk was full."""
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
        """Write JSON texts of events. If that fails, events are lost, but no error is raised."""
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
            with contextlib.suppress(OSError):  # remove an incomplete event, as more text may follow
                os.ftruncate(self._file, self._size)
            return False
        self._size += len(data)
        return True
