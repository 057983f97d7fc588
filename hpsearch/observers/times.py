"""The times of a run: its start-up, the search, and its end."""

from __future__ import annotations

import time
from collections.abc import Callable

from hpsearch.events import Event, Failed, Finished, Lost, Opened, Reverted, Started
from hpsearch.tables.wording import duration

__all__ = ["Times"]


class Times:
    """Records the start of a run's first segment and the end of its last one."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """Begin with nothing noted.

        Args:
            clock: Seconds since the epoch.
        """
        self._clock = clock
        self._first: float | None = None
        self._last: float | None = None

    def observe(self, event: Event) -> None:
        """Receive an event; those of earlier runs, before this one's `Opened`, don't count."""
        match event:
            case Opened():
                self._first = self._last = None
            case Started() if self._first is None:
                self._first = self._last = self._clock()
            case Finished() | Failed() | Lost() | Reverted() if self._first is not None:
                self._last = self._clock()

    def words(self, began: float) -> str:
        """Format the times after the run; empty if nothing ran.

        Args:
            began: Start of the process, in seconds since the epoch.
        """
        if self._first is None or self._last is None:
            return ""
        now = self._clock()
        parts = f"{duration(self._first - began)} to start, {duration(self._last - self._first)} searching"
        return f"took {duration(now - began)}: {parts}, {duration(now - self._last)} to end"
