"""What tests of the backends wait for."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import psutil

Found = TypeVar("Found")


def wait_until(met: Callable[[], bool]) -> None:
    """Wait for a condition; the test's own time limit bounds it."""
    while not met():
        time.sleep(0.05)


def beside(work: Callable[[], Found]) -> Future[Found]:
    """Call a function in a thread of its own, whose error is raised where its result is asked for."""
    future: Future[Found] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()  # where the test fails nobody waits for it
    return future


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


def workers_of(node: Any) -> set[int]:
    """Give the processes of a node of the tests' Ray, which are its raylet's children."""
    raylet = node.all_processes["raylet"][0].process.pid
    return {child.pid for child in living_below(raylet, "")}


def lose(cluster: Any, node: Any) -> None:
    """Kill a node of the tests' Ray, and wait until its workers have ended; Ray itself misses it later."""
    workers = workers_of(node)
    cluster.remove_node(node, allow_graceful=False)
    wait_until(lambda: all(gone(pid) for pid in workers))


def alive_nodes() -> int:
    import ray

    return sum(node["Alive"] for node in ray.nodes())
