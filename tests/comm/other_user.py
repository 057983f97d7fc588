"""Do something as another user, without another process."""

from __future__ import annotations

import ctypes
import os
import platform
import threading
from collections.abc import Callable
from typing import TypeVar

import pytest

NOBODY = 65534

_SETRESUID = {"x86_64": 117, "aarch64": 147}

T = TypeVar("T")


def as_nobody(task: Callable[[], T]) -> T:
    """Run the task in a thread of the user nobody; skips the test where that can't be done."""
    number = _SETRESUID.get(platform.machine())
    if os.geteuid() != 0 or number is None:
        pytest.skip("only root can act as another user, on x86-64 and aarch64")
    results: list[T] = []

    def run() -> None:
        # The bare call changes this thread alone; the C library's would change all.
        if ctypes.CDLL(None).syscall(number, NOBODY, NOBODY, NOBODY) == 0:
            results.append(task())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results[0]
