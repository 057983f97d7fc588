"""Copying of a directory or file that a user passes as a checkpoint."""

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
    """Copy a directory or file recursively. Links are followed, so that the copy is self-contained.

    `shutil.copytree` would block on a FIFO, and would turn errors of the system into text.

    Args:
        source: Directory or file to copy.
        target: Path of the copy. It must not exist.
        above: The enclosing directories that are being copied, as (device, inode).

    Raises:
        CheckpointError: An entry is neither file nor directory, or a link is broken or circular.
        OSError: An entry cannot be read or written.
    """
    try:
        status = source.stat()
    except FileNotFoundError:
        if not source.is_symlink():
            raise
        raise _refused(source, "a link that leads nowhere") from None
    if stat.S_ISREG(status.st_mode):
        shutil.copy2(source, target)
        return
    if not stat.S_ISDIR(status.st_mode):
        raise _refused(source, _KINDS.get(stat.S_IFMT(status.st_mode), "something else"))
    identity = (status.st_dev, status.st_ino)
    if identity in above:
        raise _refused(source, "a link to a directory that it lies in")
    target.mkdir()
    for entry in source.iterdir():
        copy_tree(entry, target / entry.name, above | {identity})
    shutil.copystat(source, target)


def _refused(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"a checkpoint can hold files and directories, but {path} is {what}: take it out")
