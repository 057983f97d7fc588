"""What was added to a study's journal since one looked last."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpsearch.errors import HpsearchError
from hpsearch.events import Entry
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.journal import BEGINNING, Journal

__all__ = ["LOOK_SECONDS", "Looked", "Looking", "Tail"]

LOOK_SECONDS = 1.0
"""Between two looks."""


@dataclass(frozen=True, slots=True)
class Looked:
    """What one look found."""

    entries: Sequence[Entry]
    holder: str | None
    """The process that runs the study, `user@host:pid`; None where there is none."""
    record: Mapping[str, Any] | None = None
    """What was recorded with the study, where the entries are all that there are: the first time, or where another
    journal has taken the place of the former."""


class Tail:
    """Reads a journal from where it ended before; between two looks it is closed, and stands in nobody's way."""

    def __init__(self, place: StudyDirectory) -> None:
        self._place = place
        self._known = BEGINNING
        self._begun = False

    def look(self) -> Looked:
        """Look for what is new.

        Raises:
            JournalError: There is no journal, or it can't be read.
        """
        before = self._place.holder()
        with Journal.read(self._place.journal) as journal:
            added = journal.added(self._known) if self._begun else None
            record = None
            if added is None:
                record, added = journal.study(), journal.added()
                assert added is not None, "all events follow the beginning"
            entries, self._known = added
        self._begun = True
        # Nobody was killed while the study was held before or after: what was read may just lack the last words.
        return Looked(entries, before or self._place.holder(), record)

    def begin_anew(self) -> None:
        """Let the next look give all."""
        self._begun = False


class Looking:
    """Looks again and again, in a thread of its own: a file system that hangs holds up nobody."""

    def __init__(
        self, tail: Tail, tell: Callable[[Looked | HpsearchError], object], pause: float = LOOK_SECONDS
    ) -> None:
        """Take what to look at.

        Args:
            tail: Is looked at in the thread alone from now on.
            tell: Called there with what was found, or why nothing can be read.
            pause: Seconds between two looks.
        """
        self._tail = tail
        self._tell = tell
        self._pause = pause
        self._over, self._now = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="hpsearch-watch", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def soon(self, anew: bool = False) -> None:
        """Look without waiting; with `anew` at all that there is."""
        if anew:
            self._tail.begin_anew()
        self._now.set()

    def end(self) -> None:
        """Look no more; a look that hangs is left behind."""
        self._over.set()
        self._now.set()

    def _work(self) -> None:
        while not self._over.is_set():
            self._now.wait(self._pause)
            self._now.clear()
            try:
                found: Looked | HpsearchError = self._tail.look()
            except HpsearchError as error:
                found = error
            if not self._over.is_set():
                self._tell(found)
