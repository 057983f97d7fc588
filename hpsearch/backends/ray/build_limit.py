"""Ends a worker's process in the middle of a build that takes too long: nothing else in it can."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

__all__ = ["limited"]

_LATER_SECONDS = 3.0
"""The driver kills a worker that has but one lane, which is then known to be to blame: it must come first."""


@contextlib.contextmanager
def limited(
    seconds: float | None, later: float = _LATER_SECONDS, end: Callable[[], object] = lambda: os._exit(1)
) -> Iterator[None]:
    """End this process where what runs inside takes longer than it may.

    Args:
        seconds: It may take; None: any time.
        later: Seconds that it is given on top.
        end: Ends the process.
    """
    if seconds is None:
        yield
        return
    guard, is_over = threading.Lock(), False

    def strike() -> None:
        with guard:  # so that what runs inside can't end meanwhile
            if not is_over:
                end()

    timer = threading.Timer(seconds + later, strike)
    timer.name, timer.daemon = "hpsearch-build-limit", True  # a process that exits doesn't wait for it
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with guard:
            is_over = True
