"""A study that goes on before one's eyes: the journal of a real sweep, written anew event by event."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from hpsearch.events import Entry, Event, Opened
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.journal import Journal


class Player:
    """Writes the journal as the process that ran the study wrote it."""

    def __init__(self, journal: Journal, entries: list[Entry], end: float) -> None:
        self._journal = journal
        self._entries = entries
        self._at = 0
        self._shift = end - entries[-1].time

    @property
    def left(self) -> int:
        """Events that are still to come."""
        return len(self._entries) - self._at

    def play(self, count: int = 1) -> None:
        """Write the next events, at the times that they had in their sweep."""
        for entry in self._entries[self._at : self._at + count]:
            event = entry.event
            if isinstance(event, Opened):
                event = replace(event, backend="inline", workers=4)
            self._journal.append([event], [entry.followed], entry.time + self._shift)
        self._at += count

    def play_to(self, wanted: Callable[[Event], bool]) -> Event:
        """Write events up to one, and return that."""
        while True:
            event = self._entries[self._at].event
            self.play()
            if wanted(event):
                return event


@contextlib.contextmanager
def played(source: Path, place: Path, who: str = "ann@box:4711", end: float | None = None) -> Iterator[Player]:
    """Run a study again from its journal, in another directory, as a process of this name.

    Args:
        source: Its directory.
        place: The other one.
        who: `user@host:pid`.
        end: When it ends, in seconds since the epoch; None: now.
    """
    with Journal.read(StudyDirectory(source).journal) as journal:
        record, entries = journal.study(), list(journal.entries())
    study = StudyDirectory(place)
    study.create(record, None)
    with study.running(who), Journal.open(study.journal) as journal:
        yield Player(journal, entries, time.time() if end is None else end)
