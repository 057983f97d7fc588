"""Report what a blocked thread waits for, and for how long, from another thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

__all__ = ["Waiting"]

_PAUSE = 1.0
"""Seconds until the first report, and between two."""


class Waiting:
    """Reports each second until its end, from its own thread; a wait of less than a second isn't reported."""

    def __init__(self, say: Callable[[float], object], pause: float = _PAUSE) -> None:
        """Start the thread.

        Args:
            say: Called with the seconds so far, until it returns False.
            pause: Seconds before the first call, and between two.
        """
        self._say = say
        self._pause = pause
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="hpsearch-waiting", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop reporting."""
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        with suppress(OSError, ValueError):  # a screen that is gone is no reason to complain
            while not self._over.wait(self._pause):
                if self._say(time.monotonic() - self._began) is False:
                    return
