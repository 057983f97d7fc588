"""Which file system a path lies on, and which file it is."""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = ["filesystem_of", "identity", "is_network_filesystem", "is_network_kind"]

_NETWORK = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "efs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2"}
    | {"orangefs", "panfs", "pvfs2", "smb2", "smb3", "smbfs", "virtiofs", "wekafs"}
)

_LOCAL_FUSE = frozenset(
    {"fuse.fuse-overlayfs", "fuse.mergerfs", "fuse.ntfs", "fuse.ntfs-3g", "fuse.squashfuse", "fuseblk"}
)


def filesystem_of(path: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """Give the kind of file system that holds a path, e.g. `ext4`; empty where the system doesn't tell.

    Args:
        path: Need not exist.
        mounts: The system's list of what is mounted where, in the order of mounting.
    """
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    place = path.resolve()
    kind, depth = "", -1
    for line in lines:
        _, where, mounted, *_ = line.split(" ")
        mount_point = Path(_unescaped(where))
        # Of two mounts at one place, the later one hides the former.
        if place.is_relative_to(mount_point) and len(mount_point.parts) >= depth:
            kind, depth = mounted, len(mount_point.parts)
    return kind


def identity(path: Path | int) -> tuple[int, int] | None:
    """Give what tells a file from every other that exists, whatever its name; None where there is none.

    Args:
        path: Or the descriptor of an open file.
    """
    try:
        status = path.stat() if isinstance(path, Path) else os.fstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def is_network_filesystem(path: Path) -> bool:
    """Say whether a path lies on a file system that several machines may share."""
    return is_network_kind(filesystem_of(path))


def is_network_kind(kind: str) -> bool:
    """Say whether several machines may share a file system of this kind.

    What FUSE serves counts unless it is known to be local: most of it (sshfs, s3fs, gcsfuse, ...) isn't.
    """
    return kind in _NETWORK or (kind.startswith("fuse") and kind not in _LOCAL_FUSE)


def _unescaped(mount_point: str) -> str:
    r"""Undo the kernel's octal escapes: `\040` is a space."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), mount_point)
