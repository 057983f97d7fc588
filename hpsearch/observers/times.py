"""Where the time of a run went: to its start, to the search, to its end."""

from __future__ import annotations

import time
from collections.abc import Callable

from hpsearch.events import Event, Failed, Finished, Lost, Opened, Reverted, Started
from hpsearch.tables.wording import duration

__all__ = ["Times"]


class Times:
    """Notes when the first segment of a run started, and when the last one ended."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """Begin with nothing noted.

        Args:
            clock: Seconds since the epoch.
        """
        self._clock = clock
        self._first: float | None = None
        self._last: float | None = None

    def observe(self, event: Event) -> None:
        """Take an event; those of former runs, before this one's `Opened`, don't count."""
        match event:
            case Opened():
                self._first = self._last = None
            case Started() if self._first is None:
                self._first = self._last = self._clock()
            case Finished() | Failed() | Lost() | Reverted() if self._first is not None:
                self._last = self._clock()

    def words(self, began: float) -> str:
        """Put it into words, now that the run is over; empty where nothing ran.

        Args:
            began: When the process did, in seconds since the epoch.
        """
        if self._first is None or self._last is None:
            return ""
        now = self._clock()
        parts = f"{duration(self._first - began)} to start, {duration(self._last - self._first)} searching"
        return f"took {duration(now - began)}: {parts}, {duration(now - self._last)} to end"
