"""Limits of this process: the cores that it may use, and those of its control groups, version 1 or 2."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def usable_cores() -> frozenset[int]:
    """Return the numbers of the cores that this process may run on."""
    return frozenset(os.sched_getaffinity(0))


def core_quota(membership: Path = MEMBERSHIP, root: Path = ROOT) -> float:
    """Return the CPU quota of this process's control groups, in cores; infinity if there is no limit.

    Args:
        membership: See `limits`.
        root: See `limits`.
    """
    quotas = limits("cpu", ("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"), membership, root)
    return min(map(_cores, quotas), default=math.inf)


def _cores(limit: str) -> float:
    """Parse a quota: `150000 100000` is 1.5 cores; `max`, -1 and invalid text mean no limit."""
    try:
        quota, period = (int(number) for number in limit.split())
    except ValueError:
        return math.inf
    return quota / period if quota > 0 and period > 0 else math.inf


def limits(
    controller: str, unified: Sequence[str], legacy: Sequence[str], membership: Path = MEMBERSHIP, root: Path = ROOT
) -> list[str]:
    """Return the content of a controller's files, for this process's group and its parents. All of these limits apply.

    Args:
        controller: Name of the controller, such as cpu.
        unified: The controller's files in version 2. The contents of several files are joined by a space.
        legacy: The controller's files in version 1.
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
    """Return the folders of the group and of its parents.

    In a container, the path may be valid only on the host: then only the root exists.
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
