"""What tests of the backends wait for."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

Found = TypeVar("Found")


def wait_until(met: Callable[[], object], told: Callable[[], str] = lambda: "") -> None:
    """Wait for a condition; the test's own time limit bounds it, and `told` says what was there by then."""
    try:
        while not met():
            time.sleep(0.05)
    except pytest.fail.Exception as error:
        raise AssertionError(f"{error}: {told()}") from error


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
    """Return time limits in seconds to try in turn, until an expected event happens before the limit.

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
    """Return the processes below this one whose names start with this; any of them may end at any moment."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.name().startswith(name):
                    found.append(child)
    return found
