"""Number of cores that ranks may use: CPU affinity, and the quota of a container."""

from __future__ import annotations

import math
import os
from pathlib import Path

from hpsearch_comm.shm.cgroups import MEMBERSHIP, ROOT, limits


def usable_cores() -> frozenset[int]:
    """Return the numbers of the cores that this process may run on."""
    return frozenset(os.sched_getaffinity(0))


def core_quota(membership: Path = MEMBERSHIP, root: Path = ROOT) -> float:
    """Return the CPU quota of this process's control groups, in cores; infinity if there is no limit.

    Args:
        membership: See `cgroups.limits`.
        root: See `cgroups.limits`.
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
