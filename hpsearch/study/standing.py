"""A study's state according to its journal: its current sweep, and the name of its state."""

from __future__ import annotations

import time

from hpsearch.events import (
    ASK_TELL,
    Added,
    Changed,
    Continued,
    Ended,
    Entry,
    Extended,
    Finished,
    Opened,
    Saved,
    Started,
    Steered,
)
from hpsearch.journal.journal import person
from hpsearch.study.change import changed
from hpsearch.study.extension import extended
from hpsearch.sweep.sweep import Sweep


class Standing:
    """Tracks a study's state from its journal's entries.

    Args:
        sweep: The sweep as the study was created.
    """

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        """The sweep with its extensions and changes."""
        self.spaces = [sweep.parameters]
        """The search space as the study was created, and that of each change."""
        self._opened: Opened | None = None
        self._ended: Ended | None = None
        self._paused = ""

    def ended(self, live: bool) -> Ended:
        """Return the name of the study's state, which all displays use, and a text on it.

        The state is one of these:

        - `running` or `paused`: a process runs the study.
        - `open`: an ask/tell study.
        - The state of the last run's `Ended` event.
        - `extended`: trials, brackets or iterations were added after the study had finished.
        - `killed`: the last process ended without writing an event.
        - `not begun`: no process has run the study.

        Args:
            live: Whether a process runs the study.
        """
        if self._ended is not None:
            return self._ended
        if self._opened is not None and self._opened.backend == ASK_TELL:
            return Ended("open")  # open trials belong to their callers, with or without a live process
        if live:
            return Ended("paused", self._paused) if self._paused else Ended("running")
        return Ended("not begun" if self._opened is None else "killed")

    def take(self, entry: Entry) -> None:
        """Process the next entry."""
        if isinstance(entry.event, (Started, Saved, Finished)):
            return  # most of a journal, and they don't affect this state
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
            case Changed():
                self.sweep = changed(self.sweep, event)
                self.spaces.append(self.sweep.parameters)
            case Added() | Continued():
                self._give_more()

    def _give_more(self) -> None:
        if self._ended is not None and self._ended.state == "finished":
            self._ended = Ended("extended")


def _clock(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))
