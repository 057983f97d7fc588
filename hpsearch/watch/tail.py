"""New entries of a study's journal since the last poll."""

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
    """Result of one poll."""

    entries: Sequence[Entry]
    holder: str | None
    """The process that runs the study, `user@host:pid`; None where there is none."""
    record: Mapping[str, Any] | None = None
    """The study's record, if the entries are all that there are: at the first poll, or if the journal was
    replaced."""


class Tail:
    """Reads a journal from its earlier end on; it is closed between two polls, so that it blocks nobody."""

    def __init__(self, study_dir: StudyDirectory) -> None:
        self._place = study_dir
        self._known = BEGINNING
        self._begun = False

    def look(self) -> Looked:
        """Read new entries.

        Raises:
            JournalError: The journal is missing or can't be read.
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
        # The study was locked before or after, so no process was killed: the last entries may just be missing.
        return Looked(entries, before or self._place.holder(), record)

    def begin_anew(self) -> None:
        """Have the next poll return all entries."""
        self._begun = False


class Looking:
    """Polls in a thread of its own, so that a hanging file system blocks nothing else."""

    def __init__(
        self, tail: Tail, tell: Callable[[Looked | HpsearchError], object], pause: float = LOOK_SECONDS
    ) -> None:
        """Create the poller.

        Args:
            tail: Used only in the thread from now on.
            tell: Called there with each result, or with the error.
            pause: Seconds between two polls.
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
        """Poll at once; with `anew` read all entries."""
        if anew:
            self._tail.begin_anew()
        self._now.set()

    def end(self) -> None:
        """Stop polling; a hanging poll is abandoned."""
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
