"""The end of commands that run until a signal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ends_in_good_order() -> Iterator[None]:
    """Handle the first signal like Ctrl-C, and ignore later signals, so that the cleanup completes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    former = {number: signal.getsignal(number) for number in numbers if signal.getsignal(number) is not signal.SIG_IGN}

    ends = False

    def end(*_: object) -> None:
        nonlocal ends
        if not ends:
            ends = True
            raise KeyboardInterrupt

    for number in former:
        signal.signal(number, end)
    try:
        yield
    finally:
        # At the end a late signal has no effect, even after Python has removed its handlers.
        for number, handler in former.items():
            signal.signal(number, signal.SIG_IGN if ends else handler)
