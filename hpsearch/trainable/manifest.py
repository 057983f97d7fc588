"""What a checkpoint consists of: the files in it and their sizes, written down beside them.

So a part that was deleted or cut short since is missed before anything is made of the others.
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
    """Write down every file that lies in the checkpoint's directory now."""
    sizes = {part: (checkpoint / part).stat().st_size for part in _find_parts(checkpoint)}
    (checkpoint / NAME).write_text(text_of(sizes), encoding="utf-8")


def text_of(sizes: Mapping[str, int]) -> str:
    """Give the manifest of files with these sizes in bytes."""
    return json.dumps({"bytes": dict(sorted(sizes.items()))})


def read_parts(checkpoint: Path) -> dict[str, int | None]:
    """Give the checkpoint's files, relative to it, and their sizes in bytes.

    Returns:
        Of a version that wrote no manifest: the files that are there, with None for their sizes.

    Raises:
        OSError: The system doesn't give it.
        UnreadableCheckpointError: The manifest isn't what was written.
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
    """See that a part is there, whole, and can be opened.

    Opened, because the user's own code may be the one that reads it, and its errors are its own.

    Raises:
        OSError: The system doesn't give it.
        UnreadableCheckpointError: It is no file, or has another size.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):  # to open a FIFO would wait for whoever writes to it
        raise UnreadableCheckpointError(f"the checkpoint is damaged: {path} must be a file, but is something else")
    if size is not None and found.st_size != size:
        raise UnreadableCheckpointError(
            f"the checkpoint is damaged: {path} must have {size} bytes, but has {found.st_size}"
        )
    path.open("rb").close()


def _find_parts(checkpoint: Path) -> list[str]:
    """Give what lies in a checkpoint's directory and isn't a directory itself, relative to it."""
    return sorted(os.path.relpath(path, checkpoint) for path in _files(checkpoint))


def _files(directory: Path) -> Iterator[str]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _files(Path(entry.path))
            else:
                yield entry.path
