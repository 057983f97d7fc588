"""What tests of the backends wait for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import psutil


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


def living_below(pid: int, name: str) -> list[psutil.Process]:
    """Give the processes below this one whose name begins so; any of them may end at any moment."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.name().startswith(name):
                    found.append(child)
    return found


def alive_nodes() -> int:
    import ray

    return sum(node["Alive"] for node in ray.nodes())
