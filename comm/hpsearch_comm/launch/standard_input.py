"""The launcher's standard input, which rank 0 reads as its own."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
from collections.abc import Callable

__all__ = ["StandardInput"]

_CHUNK = 1 << 16


class StandardInput:
    """Reads what rank 0 is ready to take: a piece at a time, so that little is on its way.

    Args:
        selector: Says when there is something to read.
        send: Is given each piece; nothing at the end.
    """

    def __init__(self, selector: selectors.BaseSelector, send: Callable[[bytes], None]) -> None:
        self._selector = selector
        self._send = send
        self._ready = False
        self._ended = True

    def open(self) -> None:
        """Begin to read."""
        # Reading in the background of a terminal would stop this process; it fails instead, and is tried again later.
        signal.signal(signal.SIGTTIN, signal.SIG_IGN)
        self._ready, self._ended = True, False

    def update(self) -> None:
        """Read from now on where that is wanted and possible. Call it before each wait."""
        watched = 0 in self._selector.get_map()
        enabled = self._ready and not self._ended and not _is_in_background()
        if enabled and not watched:
            self._selector.register(0, selectors.EVENT_READ, self._read)
        elif watched and not enabled:
            self._selector.unregister(0)

    def acknowledge(self, more: bool) -> None:
        """Record that rank 0 has the last piece, and whether it wants more."""
        self._ready = True
        self._ended = self._ended or not more

    def _read(self) -> None:
        try:
            data = os.read(0, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            if _is_in_background():
                return
            data = b""
        if data:
            self._ready = False
            self._send(data)
        else:
            self._ended = True
            self._send(b"")


def _is_in_background() -> bool:
    with contextlib.suppress(OSError):
        return os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp()
    return False
