"""Run a call in a thread of its own, which stays alive."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

from hpsearch.worker.child_process import block_preemption

__all__ = ["OwnThread"]

_LOOK_SECONDS = 0.05


class OwnThread:
    """Starts Ray outside the main thread, which continues to handle signals.

    In the main thread Ray would install its own SIGTERM handler. Its native code does so in any case, unknown to
    Python, and aborts the process three seconds after a SIGTERM; so our handler is restored repeatedly. The thread
    stays until `end`, because the kernel ends Ray's processes with the thread that started them. They block the signals
    that a batch system sends before it preempts a job: the driver handles them, and needs Ray for that.
    """

    def __init__(self, call: Callable[[], None], name: str) -> None:
        self._call = call
        self._done = threading.Event()
        self._end = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self, timeout: float, died: Callable[[], str | None] = lambda: None) -> None:
        """Make the call, and wait for its end; its exceptions are raised here.

        Args:
            timeout: Seconds.
            died: Returns a message if a process that the call needs has died, else None.

        Raises:
            TimeoutError: It takes longer; it continues in its thread.
            ChildProcessError: A process that it needs has died; it may continue in its thread.
        """
        self._thread.start()
        deadline = time.monotonic() + timeout
        while not self._done.wait(_LOOK_SECONDS):
            _put_back_sigterm()
            if (reason := died()) is not None and not self._done.is_set():
                raise ChildProcessError(reason)
            if time.monotonic() > deadline:
                raise TimeoutError(f"it took more than {timeout:.0f} seconds")
        _put_back_sigterm()
        if self._error is not None:
            if (reason := died()) is not None:  # while the call kept Python's lock
                raise ChildProcessError(reason) from self._error
            raise self._error

    def end(self) -> None:
        """End the thread."""
        self._end.set()

    def _run(self) -> None:
        block_preemption()
        try:
            self._call()
        except BaseException as error:  # Ray calls sys.exit, too
            self._error = error
        self._done.set()
        if self._error is None:
            self._end.wait()


def _put_back_sigterm() -> None:
    handler = signal.getsignal(signal.SIGTERM)  # Python's handler, not the kernel's
    if threading.current_thread() is threading.main_thread() and handler is not None:
        signal.signal(signal.SIGTERM, handler)
