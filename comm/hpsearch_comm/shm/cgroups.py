"""What the control groups of this process, of version 1 or 2, allow it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def limits(
    controller: str, unified: Sequence[str], legacy: Sequence[str], membership: Path = MEMBERSHIP, root: Path = ROOT
) -> list[str]:
    """Return what stands in a controller's files, of this process's group and of each above it: all of them count.

    Args:
        controller: Such as cpu.
        unified: Its files in version 2; what several hold is joined by a space.
        legacy: Those in version 1.
        membership: The process's cgroup file: a line `0::/path` for version 2, `4:cpu,cpuacct:/path` for version 1.
        root: Where the control groups are mounted.
    """
    texts: list[str] = []
    for line in _text(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            texts += [_joined(folder, unified) for folder in _upwards(root, path)]
        elif controller in controllers.split(","):
            texts += [_joined(folder, legacy) for folder in _upwards(root / controller, path)]
    return texts


def _upwards(root: Path, path: str) -> list[Path]:
    """Return the group's folder and those above it.

    Inside a container the path may be the host's, and then only the root is there.
    """
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [root.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def _joined(folder: Path, files: Sequence[str]) -> str:
    return " ".join(_text(folder / file) for file in files)


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
