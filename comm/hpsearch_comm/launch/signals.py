"""Signals as something to wait for and to take in turn, rather than handlers that run anywhere."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Sequence
from types import TracebackType
from typing import Any

__all__ = ["Signals"]


class Signals:
    """Keeps the signals that arrive, as long as the context lasts.

    Args:
        numbers: Which. One that is ignored, as by nohup, stays so.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = numbers
        self._arrived: list[int] = []
        self._former: dict[int, Any] = {}
        self._woken, self._waking = socket.socketpair()

    def __enter__(self) -> Signals:
        for sock in (self._woken, self._waking):
            sock.setblocking(False)
        signal.set_wakeup_fd(self._waking.fileno(), warn_on_full_buffer=False)
        for number in self._numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._former[number] = signal.signal(number, lambda number, _: self._arrived.append(number))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self._woken.close()
        self._waking.close()

    def fileno(self) -> int:
        """Return a descriptor that is readable once a signal has arrived, until `take` is called."""
        return self._woken.fileno()

    def take(self) -> list[int]:
        """Return the signals that have arrived since, in their order."""
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)
        arrived, self._arrived = self._arrived, []
        return arrived
