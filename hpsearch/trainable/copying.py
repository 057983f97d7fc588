"""Copy the directory or file that a user offers as a checkpoint."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

from hpsearch.errors import CheckpointError

__all__ = ["copy_tree"]

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def copy_tree(source: Path, target: Path, above: frozenset[tuple[int, int]] = frozenset()) -> None:
    """Copy a directory or file with all that lies below; links are followed, so that the copy stands by itself.

    `shutil.copytree` would hang at a FIFO, and put what the system refused into words.

    Args:
        source: What to copy.
        target: Where; it isn't there yet.
        above: The directories that are being copied around this one.

    Raises:
        CheckpointError: Something below is neither file nor directory, or a link leads nowhere or back up.
        OSError: The system refuses to read or write something.
    """
    try:
        found = source.stat()
    except FileNotFoundError:
        if not source.is_symlink():
            raise
        raise _refused(source, "a link that leads nowhere") from None
    if stat.S_ISREG(found.st_mode):
        shutil.copy2(source, target)
        return
    if not stat.S_ISDIR(found.st_mode):
        raise _refused(source, _KINDS.get(stat.S_IFMT(found.st_mode), "something else"))
    identity = (found.st_dev, found.st_ino)
    if identity in above:
        raise _refused(source, "a link to a directory that it lies in")
    target.mkdir()
    for entry in source.iterdir():
        copy_tree(entry, target / entry.name, above | {identity})
    shutil.copystat(source, target)


def _refused(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"a checkpoint can hold files and directories, but {path} is {what}: take it out")
