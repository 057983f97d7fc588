"""Files and folders: their file system, identity and size, and functions that write them durably or atomically."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from hpsearch.errors import StorageError
from hpsearch.trainable.addresses import pack_of, path_of

_NETWORK = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "efs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2"}
    | {"orangefs", "panfs", "pvfs2", "smb2", "smb3", "smbfs", "virtiofs", "wekafs"}
)

_LOCAL_FUSE = frozenset(
    {"fuse.fuse-overlayfs", "fuse.mergerfs", "fuse.ntfs", "fuse.ntfs-3g", "fuse.squashfuse", "fuseblk"}
)


def filesystem_of(path: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """Return the type of a path's file system, such as `ext4`; empty if unknown.

    Args:
        path: The path, which need not exist.
        mounts: The system's list of mounts, in order.
    """
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    resolved = path.resolve()
    kind, depth = "", -1
    for line in lines:
        _, where, mounted, *_ = line.split(" ")
        mount_point = Path(_unescaped(where))
        # A later mount hides an earlier one at the same path.
        if resolved.is_relative_to(mount_point) and len(mount_point.parts) >= depth:
            kind, depth = mounted, len(mount_point.parts)
    return kind


def identity(path: Path | int) -> tuple[int, int] | None:
    """Return a file's (device, inode), which don't depend on its name; None if the file doesn't exist.

    Args:
        path: Its path or descriptor.
    """
    try:
        status = path.stat() if isinstance(path, Path) else os.fstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def is_network_filesystem(path: Path) -> bool:
    """Return whether a path lies on a file system that several machines may share."""
    return is_network_kind(filesystem_of(path))


def is_network_kind(kind: str) -> bool:
    """Return whether several machines may share a file system of this kind.

    FUSE file systems count unless they are known to be local: most (sshfs, s3fs, gcsfuse, ...) aren't.
    """
    return kind in _NETWORK or (kind.startswith("fuse") and kind not in _LOCAL_FUSE)


def _unescaped(mount_point: str) -> str:
    r"""Undo the kernel's octal escapes: `\040` is a space."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), mount_point)


def flush(study: Path, addresses: Iterable[str | None]) -> None:
    """Flush checkpoints and their parent directories to disk.

    Any process on this machine may have written them. Over a network, the writer sent them to the server on close.
    Missing checkpoints are skipped: they are reported when they are read.

    Args:
        study: The study's directory.
        addresses: Addresses of checkpoints relative to the study's directory; None entries are skipped.

    Raises:
        OSError: A file can't be written to disk.
    """
    named = [address for address in addresses if address is not None]
    paths = {study / path for address in named for path in (pack_of(address), path_of(address)) if path}
    folders: set[Path] = set()
    for path in paths:
        if path.exists():
            folders.update(folder for folder in path.parents if folder.is_relative_to(study.parent))
            for inside in (path, *path.rglob("*")):
                _flush(inside)
    for folder in folders:
        _flush(folder)


def _flush(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


@contextlib.contextmanager
def writing(rule: str, advice: str = "") -> Iterator[None]:
    """Convert an OSError in the block to a StorageError.

    Args:
        rule: The violated expectation: `report.html: expected a file that can be written`.
        advice: What to do, as a sentence.

    Raises:
        StorageError: The block raised an OSError.
    """
    try:
        yield
    except OSError as error:
        raise StorageError(f"{rule}, got: {error.strerror or error}{advice and f'. {advice}'}") from error


def delete(path: Path) -> None:
    """Delete a file or a folder, if it exists. A link is deleted, but not its target."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def put_in_place(content: bytes, target: Path) -> None:
    """Write a file atomically, by renaming a temporary one.

    An existing link is replaced, too, as a study may come from somebody else.
    """
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("xb") as file:
            file.write(content)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def size_of(paths: Iterable[Path]) -> int:
    """Return the disk usage of files and folders in bytes, including all contents, as `du` does.

    Disk usage counts blocks: thousands of small files use far more than their lengths. Links aren't followed.
    """
    total = 0
    folders: list[str] = []
    for path in paths:
        total += _bytes(path)
        if path.is_dir() and not path.is_symlink():
            folders.append(os.fspath(path))
    while folders:  # there may be tens of thousands of folders, which may vanish: each is read once
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                total += _bytes(entry)
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
    return total


def _bytes(entry: Path | os.DirEntry[str]) -> int:
    with contextlib.suppress(OSError):
        return os.lstat(entry).st_blocks * 512  # POSIX leaves the unit open, but all systems count so
    return 0
