"""End a worker's process in the middle of a build that takes too long, which nothing else in it can stop."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

__all__ = ["limited"]

_LATER_SECONDS = 3.0
"""A worker with only one lane is killed by the driver, which then knows the cause: that must come first."""


@contextlib.contextmanager
def limited(
    seconds: float | None, later: float = _LATER_SECONDS, end: Callable[[], object] = lambda: os._exit(1)
) -> Iterator[None]:
    """End this process if the block takes longer than `seconds`.

    Args:
        seconds: Its limit; None: no limit.
        later: Seconds in addition.
        end: Ends the process.
    """
    if seconds is None:
        yield
        return
    guard, is_over = threading.Lock(), False

    def strike() -> None:
        with guard:  # so that the block can't end meanwhile
            if not is_over:
                end()

    timer = threading.Timer(seconds + later, strike)
    timer.name, timer.daemon = "hpsearch-build-limit", True  # a daemon, which the process doesn't wait for
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with guard:
            is_over = True
