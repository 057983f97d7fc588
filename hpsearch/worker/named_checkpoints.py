"""The checkpoints that a script's lines name: when they are copied, and when a copy counts.

A script goes on while its line is read: what stands at the path may be a later iteration's already, or half of it. So
each line should name a path of its own. A script that wrote over what was copied, before it was, names the path again
in its next line at the latest. So a copy counts once the script has appended one line more than it had when the copy
was done, or has ended. Times of change can't tell as much: a file's is set before what changes can be read.
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

_ADVICE = "write each one to a path of its own, such as $HPSEARCH_DIRECTORY/model-<iteration>, and leave it alone then"


@dataclass(frozen=True, slots=True)
class Copy:
    """A checkpoint that was copied, and doesn't count yet."""

    iteration: int
    name: str
    """Of the checkpoint in the attempt's directory."""
    path: Path
    """What was copied."""
    line: int
    """The line that named it."""
    enough: int
    """Lines that must have been read before it is certain that nothing was written over it before."""


class NamedCheckpoints:
    """What the lines of one attempt named."""

    def __init__(self, directory: Path, lines: Path) -> None:
        self._directory = directory
        self._lines = lines
        self._last_named: dict[str, int] = {}
        """Paths to the last line that was read and named them."""
        self._copied: set[str] = set()

    def note(self, number: int, line: dict[str, Any]) -> None:
        """Take note of what a line names, when it is read; it may be taken later."""
        offered = line.get("checkpoint")
        if isinstance(offered, str):
            self._last_named.update(dict.fromkeys(_names(self._directory / offered), number))

    def named(self, number: int, offered: object) -> Path | None:
        """Give the path that a line names, when it is taken.

        Raises:
            TrainableError: It is no path, or one that was copied for another line.
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
        """Copy what an iteration's line named; give the checkpoint's name.

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
        """See that what the last line named was left alone until the script ended.

        Raises:
            TrainableError: It wasn't.
        """
        appended = self._lines.stat()
        for found in _stats(path):
            if found.st_dev == appended.st_dev and found.st_mtime_ns > appended.st_mtime_ns:
                raise TrainableError(f"the checkpoint {path} was changed after the line that names it: {_ADVICE}")

    def check(self, copy: Copy) -> None:
        """See that no line so far has named a copy's path again.

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
    """Look at everything at and below a path; what is gone meanwhile is left out."""
    below = (Path(folder, name) for folder, folders, files in os.walk(path) for name in folders + files)
    for place in (path, *below):
        try:
            yield place.stat()
        except FileNotFoundError:
            continue
