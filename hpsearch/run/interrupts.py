"""Ctrl-C, SIGTERM and a closed terminal while a sweep runs: the first asks it to end, the second ends it at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from hpsearch.errors import Interrupted

__all__ = ["Interrupts"]


class Interrupts:
    """Counts the signals that ask this process to end, while it is entered.

    Outside the main thread no signal can be caught: then it counts none, and Python's own way holds.
    """

    def __init__(self) -> None:
        self.count = 0
        self._former: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                    continue  # `nohup`
                self._former[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)
        self._former.clear()

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 1:
            raise Interrupted
