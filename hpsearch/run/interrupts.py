"""Handle Ctrl-C, SIGTERM, a closed terminal and preemption: the first ends the sweep in order, the second at once.

If a sweep runs inside a user's program, `passing_on` ends the program after the sweep.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from hpsearch.errors import Interrupted
from hpsearch.worker.child_process import PREEMPTION

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *PREEMPTION)


class Interrupts:
    """Records the signals that end this process, within its block.

    Outside the main thread it does nothing, as signals can't be handled there.
    """

    def __init__(self) -> None:
        self.signals: list[int] = []
        """Signal numbers, in order of arrival."""
        self._former: dict[int, Any] = {}
        self._is_armed = False  # whether the second signal raises: not while handlers are installed

    @property
    def count(self) -> int:
        """Number of signals."""
        return len(self.signals)

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            try:
                for number in _SIGNALS:
                    former = signal.getsignal(number)
                    if not _is_taken(number, former):
                        continue
                    self._former[number] = former
                    signal.signal(number, self._take)
            except BaseException:  # an earlier handler raised
                self.give_back()
                raise
            self._is_armed = True
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()

    def give_back(self) -> None:
        """Restore all earlier handlers, even if one is called meanwhile and raises."""
        self._is_armed = False
        with ExitStack() as stack:
            for number, former in self._former.items():
                stack.callback(signal.signal, number, former)
            self._former = {}

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.signals.append(number)
        if self.count > 1 and self._is_armed:
            raise Interrupted


def interrupted(message: str) -> KeyboardInterrupt:
    """Return the exception that ends the caller as Ctrl-C does, or the outer sweep if this is one of its trials."""
    return Interrupted(message) if _is_ours(signal.getsignal(signal.SIGINT)) else KeyboardInterrupt(message)


@contextmanager
def passing_on(interrupts: Interrupts, message: str) -> Iterator[None]:
    """End the caller after the block by signals that arrived in the block.

    SIGINT raises KeyboardInterrupt, and other signals SystemExit with the shell's exit code (143 for SIGTERM), so that
    `finally` and `atexit` run. If the caller has its own handler for a signal, that is called instead, and execution
    continues if it returns.

    Args:
        interrupts: Entered and left within the block.
        message: Message for the user.
    """
    try:
        yield
    finally:
        interrupts.give_back()  # a signal may have interrupted the first restoration
        for number in sorted(set(interrupts.signals), key=lambda number: number == signal.SIGINT):
            handler = signal.getsignal(number)
            if callable(handler) and handler is not signal.default_int_handler:
                signal.raise_signal(number)
                if _is_ours(handler):  # the outer sweep received the signal, too, and its trial must not continue
                    raise Interrupted(message)
            elif number == signal.SIGINT:
                raise KeyboardInterrupt(message)
            else:
                with suppress(OSError, ValueError, AttributeError):  # nobody reads it
                    print(f"hpsearch: {message}", file=sys.stderr, flush=True)
                raise SystemExit(128 + number)


def _is_taken(number: int, former: object) -> bool:
    """Return whether a signal should end the sweep, depending on the program's handler."""
    if former is None:  # set before Python started: it couldn't be restored
        return False
    if number in PREEMPTION:  # a program may use them for something else
        return _is_ours(former) or _has_default_action(number)
    return number != signal.SIGHUP or former is not signal.SIG_IGN  # `nohup`


def _has_default_action(number: int) -> bool:
    """Return whether the kernel neither handles nor ignores a signal. Python doesn't know handlers of native code."""
    status = Path("/proc/self/status").read_text("ascii", "replace")
    fields = dict(line.split(":", 1) for line in status.splitlines() if line.startswith(("SigCgt:", "SigIgn:")))
    return not any(int(mask, 16) >> (number - 1) & 1 for mask in fields.values())


def _is_ours(handler: object) -> bool:
    return isinstance(getattr(handler, "__self__", None), Interrupts)
