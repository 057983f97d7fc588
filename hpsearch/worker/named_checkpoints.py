"""Checkpoints that a script's report lines name: when they are copied, and when a copy counts.

A script continues while its line is read, so the path may already have a later iteration's checkpoint, or half of it.
Therefore each line should name a path of its own. A script that overwrites a path before it is copied names the path
again, in its next line at the latest. So a copy counts once the script has appended one line more than it had at the
end of the copy, or has ended. Modification times don't suffice: a file's is set before its new content can be read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpsearch.errors import TrainableError, UnwritableError
from hpsearch.trainable import checkpoints

__all__ = ["Copy", "NamedCheckpoints"]

_ADVICE = "write each one to a new path, such as $HPSEARCH_DIRECTORY/model-<iteration>, and don't change it later"


@dataclass(frozen=True, slots=True)
class Copy:
    """A copied checkpoint that doesn't count yet."""

    iteration: int
    name: str
    """Name of the checkpoint in the attempt's directory."""
    path: Path
    """Path of the source."""
    line: int
    """The line that named it."""
    enough: int
    """Number of lines after which the source is known not to have been overwritten before the copy."""


class NamedCheckpoints:
    """Checkpoints that the lines of one attempt named."""

    def __init__(self, directory: Path, lines: Path) -> None:
        self._directory = directory
        self._lines = lines
        self._last_named: dict[str, int] = {}
        """Last line that named each path."""
        self._copied: set[str] = set()

    def note(self, number: int, line: dict[str, Any]) -> None:
        """Record what a line names when it is read; it is handled later."""
        offered = line.get("checkpoint")
        if isinstance(offered, str):
            self._last_named.update(dict.fromkeys(_names(self._directory / offered), number))

    def named(self, number: int, offered: object) -> Path | None:
        """Return the path that a line names, when it is handled.

        Raises:
            TrainableError: It is no path, or was copied for another line.
        """
        if offered is None:
            return None
        if not isinstance(offered, str):
            raise TrainableError(f"`checkpoint` in a line must be the path of a directory or file, but is {offered!r}")
        path = self._directory / offered
        if self._copied & _names(path):
            raise _named_twice(path, number)
        return path

    def copy(self, path: Path, iteration: int) -> str:
        """Copy the path that an iteration's line named; return the checkpoint's name.

        Raises:
            CheckpointError, UnwritableError, StorageError: It can't be copied.
            TrainableError: It was changed meanwhile.
        """
        self._copied |= _names(path)
        try:
            return checkpoints.write(self._directory, iteration, path, None)
        except UnwritableError as error:
            if isinstance(error.__cause__, (FileNotFoundError, NotADirectoryError)):
                raise TrainableError(f"the checkpoint {path} was changed while it was copied: {_ADVICE}") from error
            raise

    def check_at_end(self, path: Path) -> None:
        """Check that the last line's path didn't change until the script ended.

        Raises:
            TrainableError: It did.
        """
        appended = self._lines.stat()
        for stat in _stats(path):
            if stat.st_dev == appended.st_dev and stat.st_mtime_ns > appended.st_mtime_ns:
                raise TrainableError(f"the checkpoint {path} was changed after the line that names it: {_ADVICE}")

    def check(self, copy: Copy) -> None:
        """Check that no line has named a copy's path again.

        Raises:
            TrainableError: One has.
        """
        last = max(self._last_named.get(name, 0) for name in _names(copy.path))
        if last > copy.line:
            raise _named_twice(copy.path, last)


def _names(path: Path) -> set[str]:
    return {os.path.normpath(path), os.path.realpath(path)}


def _named_twice(path: Path, line: int) -> TrainableError:
    return TrainableError(
        f"line {line} of $HPSEARCH_REPORTS names the checkpoint {path}, but so did the line of another iteration, for "
        f"which it was copied while the script went on: {_ADVICE}"
    )


def _stats(path: Path) -> Iterator[os.stat_result]:
    """Return the stats of all files at and below a path; vanished ones are left out."""
    below = (Path(folder, name) for folder, folders, files in os.walk(path) for name in folders + files)
    for file in (path, *below):
        try:
            yield file.stat()
        except FileNotFoundError:
            continue
