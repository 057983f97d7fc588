"""The manifest of a checkpoint: its files and their sizes.

So a missing or truncated file is detected before the others are used.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from hpsearch.errors import UnreadableCheckpointError

__all__ = ["NAME", "check_part", "read_parts", "text_of", "write_manifest"]

NAME = "manifest.json"


def write_manifest(checkpoint: Path) -> None:
    """Write the manifest of the files in the checkpoint's directory."""
    sizes = {part: (checkpoint / part).stat().st_size for part in _find_parts(checkpoint)}
    (checkpoint / NAME).write_text(text_of(sizes), encoding="utf-8")


def text_of(sizes: Mapping[str, int]) -> str:
    """Return the manifest of files with these sizes in bytes."""
    return json.dumps({"bytes": dict(sorted(sizes.items()))})


def read_parts(checkpoint: Path) -> dict[str, int | None]:
    """Return the checkpoint's files, relative to its directory, and their sizes in bytes.

    Returns:
        Paths to sizes. Without a manifest, as in a pack that `unzip` wrote out: the files in the directory, with None
        as sizes.

    Raises:
        OSError: The manifest cannot be read.
        UnreadableCheckpointError: The manifest is damaged.
    """
    path = checkpoint / NAME
    try:
        path.lstat()
    except FileNotFoundError:
        return dict.fromkeys(_find_parts(checkpoint))
    check_part(path, None)
    try:
        parts: dict[str, int | None] = dict(json.loads(path.read_text(encoding="utf-8"))["bytes"])
        if any("\0" in part for part in parts):
            raise ValueError("no file has such a name")
        return parts
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableCheckpointError(f"the checkpoint is damaged: {path} must be a manifest, but isn't") from error


def check_part(path: Path, size: int | None) -> None:
    """Check that a file exists, has its size, and can be opened.

    It is opened because the user's code may read it later, and would raise its own error.

    Raises:
        OSError: The file cannot be opened.
        UnreadableCheckpointError: It is not a file, or has another size.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):  # opening a FIFO would block
        raise UnreadableCheckpointError(f"the checkpoint is damaged: {path} must be a file, but is something else")
    if size is not None and status.st_size != size:
        raise UnreadableCheckpointError(
            f"the checkpoint is damaged: {path} must have {size} bytes, but has {status.st_size}"
        )
    path.open("rb").close()


def _find_parts(checkpoint: Path) -> list[str]:
    """Return the sorted paths of the files in a checkpoint's directory, relative to it."""
    return sorted(os.path.relpath(path, checkpoint) for path in _files(checkpoint))


def _files(directory: Path) -> Iterator[str]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _files(Path(entry.path))
            else:
                yield entry.path
