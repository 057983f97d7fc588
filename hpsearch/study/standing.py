"""How a study stands by its journal: what it was extended by, and whether it runs, is paused or has ended."""

from __future__ import annotations

import time

from hpsearch.events import Added, Ended, Extended, Finished, Opened, Saved, Started, Steered
from hpsearch.study.extension import extended
from hpsearch.study.journaled_state import Entry
from hpsearch.study.requests import person
from hpsearch.sweep.sweep import Sweep

__all__ = ["Standing"]


class Standing:
    """Follows a journal's entries.

    Args:
        sweep: As the study was created.
        live: A process runs it.
    """

    def __init__(self, sweep: Sweep, live: bool) -> None:
        self.sweep = sweep
        """With what it was extended by."""
        self._live, self._begun = live, False
        self._unended = Ended("running" if live else "interrupted")
        self.ended = self._unended
        """What `Ended` says, or would say now."""

    @property
    def has_ended(self) -> bool:
        """Whether the last run ended in good order."""
        return self.ended is not self._unended

    @property
    def state(self) -> str:
        """That of `ended`, but `killed` where the last process ended without a word, `not begun` where none ran it."""
        if self._live or self.has_ended:
            return self.ended.state
        return "killed" if self._begun else "not begun"

    def take(self, entry: Entry) -> None:
        """Take the next entry."""
        if isinstance(entry.event, (Started, Saved, Finished)):
            return  # nearly all of a journal, and nothing here turns on them
        match event := entry.event:
            case Opened() | Steered(verb="resume", refused=""):
                self.ended = self._unended
                self._begun |= isinstance(event, Opened)
            case Steered(verb="cancel", refused="") if not self._live:
                self.ended = Ended("interrupted")  # nothing follows it
            case Steered(verb="pause", refused="") if self._live:
                since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.time))
                self.ended = Ended("paused", f"since {since}, by {person(event.by)}")
            case Ended():
                self.ended = event
            case Extended():
                self.sweep = extended(self.sweep, event)
                self._give_more()
            case Added():
                self._give_more()

    def _give_more(self) -> None:
        if self.ended.state == "finished":
            self.ended = Ended("extended")
