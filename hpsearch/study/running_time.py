"""How long a sweep has run, by its journal."""

from __future__ import annotations

from collections.abc import Iterable

from hpsearch.events import Ended, Opened, Steered
from hpsearch.study.journaled_state import Entry

__all__ = ["RunningTime", "seconds_spent"]


class RunningTime:
    """Follows a journal's entries; a clock that was set back takes nothing off."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """In which a process ran the sweep and it wasn't paused, as far as the journal tells."""
        self._since = 0.0
        self._counts = False

    def take(self, entry: Entry) -> None:
        """Take the next entry."""
        match entry.event:
            case Opened():
                self._counts = True
            case Steered(request=None):  # by a command, while no process ran the study
                self._counts = False
            case _ if self._counts:
                self.seconds += max(0.0, entry.time - self._since)
        self._since = entry.time
        match entry.event:
            case Ended() | Steered(verb="pause", refused=""):
                self._counts = False
            case Steered(verb="resume", refused=""):
                self._counts = True


def seconds_spent(history: Iterable[Entry]) -> float:
    """Add up how long former runs took."""
    time = RunningTime()
    for entry in history:
        time.take(entry)
    return time.seconds
