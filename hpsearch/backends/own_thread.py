"""A call in a thread of its own, which then stays."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["OwnThread"]


class OwnThread:
    """Starts Ray beside the main thread, which goes on hearing signals meanwhile.

    In the main thread Ray would take SIGTERM for itself. The thread stays until `end`, because the kernel ends what Ray
    started with the thread that started it.
    """

    def __init__(self, call: Callable[[], None], name: str) -> None:
        self._call = call
        self._done = threading.Event()
        self._end = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self, timeout: float) -> None:
        """Make the call, and wait until it has returned; what it raises is raised here.

        Raises:
            TimeoutError: It took longer than `timeout` seconds; it goes on.
        """
        self._thread.start()
        if not self._done.wait(timeout):
            raise TimeoutError(f"it took more than {timeout:.0f} seconds")
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Let the thread end."""
        self._end.set()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:  # Ray calls sys.exit, too
            self._error = error
        self._done.set()
        if self._error is None:
            self._end.wait()
