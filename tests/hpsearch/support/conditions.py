"""What tests of the backends wait for."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def wait_until(met: Callable[[], bool]) -> None:
    """Wait for a condition; the test's own time limit bounds it."""
    while not met():
        time.sleep(0.05)


def limits(first: float) -> list[float]:
    """Give seconds to try as a time limit, in turn, until what is to happen before it has happened.

    How long that takes depends on the machine, and on what else it does.
    """
    return [first * 4**turn for turn in range(4)]


def gone(pid: float) -> bool:
    """Say whether this process has ended; as a metric its number is a float."""
    try:
        return Path(f"/proc/{int(pid)}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def alive_nodes() -> int:
    import ray

    return sum(node["Alive"] for node in ray.nodes())
