"""A clock beside a thread that is held up: it says what is waited for, and for how long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

__all__ = ["Waiting"]

_PAUSE = 1.0
"""Seconds until something is said, and between two times."""


class Waiting:
    """Says something each second until it ends, from a thread of its own; a wait of under a second isn't told of."""

    def __init__(self, say: Callable[[float], object], pause: float = _PAUSE) -> None:
        """Begin.

        Args:
            say: Called with the seconds so far, until it answers False.
            pause: Seconds until then, and between two calls.
        """
        self._say = say
        self._pause = pause
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="hpsearch-waiting", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Say nothing more."""
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        with suppress(OSError, ValueError):  # a screen that is gone is no reason to complain
            while not self._over.wait(self._pause):
                if self._say(time.monotonic() - self._began) is False:
                    return
