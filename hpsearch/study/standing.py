"""A study's state by its journal: its extensions, and the word for its state."""

from __future__ import annotations

import time

from hpsearch.events import ASK_TELL, Added, Ended, Entry, Extended, Finished, Opened, Saved, Started, Steered
from hpsearch.journal.journal import person
from hpsearch.study.extension import extended
from hpsearch.sweep.sweep import Sweep


class Standing:
    """Follows a journal's entries.

    Args:
        sweep: As the study was created.
    """

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        """With what it was extended by."""
        self._opened: Opened | None = None
        self._ended: Ended | None = None
        self._paused = ""

    def ended(self, live: bool) -> Ended:
        """Return the study's state, in the one word that all displays use, and a text on it.

        `running`; `paused`; `open`, where it is run by ask and tell; what the last run ended with, if that
        was normal; `extended`, given more to do when it was finished; `killed`, where its process ended without
        an event; `not begun`, where none ran it.

        Args:
            live: A process runs it.
        """
        if self._ended is not None:
            return self._ended
        if self._opened is not None and self._opened.backend == ASK_TELL:
            return Ended("open")  # requested trials stay with who requested them, whether a process is there or not
        if live:
            return Ended("paused", self._paused) if self._paused else Ended("running")
        return Ended("not begun" if self._opened is None else "killed")

    def take(self, entry: Entry) -> None:
        """Take the next entry."""
        if isinstance(entry.event, (Started, Saved, Finished)):
            return  # nearly all of a journal, and nothing here turns on them
        match event := entry.event:
            case Opened():
                self._opened, self._ended, self._paused = event, None, ""
            case Steered(verb="resume", refused=""):
                self._ended, self._paused = None, ""
            case Steered(verb="pause", refused=""):
                self._paused = f"since {_clock(entry.time)}, by {person(event.by)}"
            case Steered(verb="cancel", refused=""):
                self._ended = Ended("cancelled", f"at {_clock(entry.time)}, by {person(event.by)}")
            case Ended() if event.state != "cancelled" or self._ended is None:
                self._ended = event
            case Extended():
                self.sweep = extended(self.sweep, event)
                self._give_more()
            case Added():
                self._give_more()

    def _give_more(self) -> None:
        if self._ended is not None and self._ended.state == "finished":
            self._ended = Ended("extended")


def _clock(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))
