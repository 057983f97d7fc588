"""A network of one's own, without another process."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from typing import TypeVar

import pytest

_CLONE_NEWNET = 0x40000000

T = TypeVar("T")


def in_a_network(setup: str, task: Callable[[], T]) -> T:
    """Run the task in a thread that sees a network namespace of its own; skips the test where that can't be done.

    Args:
        setup: Shell commands that make its interfaces; there is none but loopback, which is down.
        task: What to do there. Sockets that it makes belong to that network.
    """
    shell, ip = shutil.which("sh"), shutil.which("ip")
    if shell is None or ip is None or os.geteuid() != 0:
        pytest.skip("only root can make a network, and with the command ip")
    results: list[T] = []
    reasons: list[str] = []
    failures: list[BaseException] = []

    def run() -> None:
        if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET) != 0:
            reasons.append(os.strerror(ctypes.get_errno()))
            return
        made = subprocess.run([shell, "-ec", setup], capture_output=True, text=True)
        if made.returncode != 0:
            reasons.append(made.stderr)
            return
        try:
            results.append(task())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if reasons:
        pytest.skip(f"this kernel doesn't let us make the network: {reasons[0].strip()}")
    if failures:
        raise failures[0]
    return results[0]
