"""How many cores ranks may keep busy: affinity, and the quota of a container."""

from __future__ import annotations

import math
import os
from pathlib import Path

__all__ = ["core_quota", "usable_cores"]

_ROOT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def usable_cores() -> frozenset[int]:
    """Give the numbers of the cores that this process may run on."""
    return frozenset(os.sched_getaffinity(0))


def core_quota(membership: Path = _MEMBERSHIP, root: Path = _ROOT) -> float:
    """Give how many cores' worth of time this process's control groups grant it; infinity where there's no limit.

    Args:
        membership: The process's cgroup file: a line `0::/path` for version 2, `4:cpu,cpuacct:/path` for version 1.
        root: Where the control groups are mounted.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return math.inf
    limits: list[str] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            limits += [_text(folder / "cpu.max") for folder in _upwards(root, path)]
        elif "cpu" in controllers.split(","):
            files = "cpu.cfs_quota_us", "cpu.cfs_period_us"
            limits += [" ".join(_text(folder / file) for file in files) for folder in _upwards(root / "cpu", path)]
    return min(map(_cores, limits), default=math.inf)


def _upwards(root: Path, path: str) -> list[Path]:
    """Give the group's folder and those above it: the tightest limit on the way counts.

    Inside a container the path may be the host's, and then only the root is there.
    """
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [root.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _cores(limit: str) -> float:
    """Read `150000 100000` as 1.5 cores; `max` and -1 are no limit, and neither is what can't be read."""
    try:
        quota, period = (int(number) for number in limit.split())
    except ValueError:
        return math.inf
    return quota / period if quota > 0 and period > 0 else math.inf
