"""The observer's seam: whoever watches a sweep. The sweep neither waits for an observer nor fails with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from hpsearch.backends.base import Workers
from hpsearch.course import Course
from hpsearch.decision import Decision
from hpsearch.events import Event
from hpsearch.schedulers.base import RungView
from hpsearch.trial import Report

__all__ = ["Audience", "Observer"]


class Observer(ABC):
    """Watches a sweep, on a thread of its own; an exception ends the watching, not the sweep."""

    @abstractmethod
    def observe(self, event: Event, decisions: Sequence[Decision]) -> None:
        """Take an event that was journaled, and what the scheduler decided on it. Order is the journal's."""

    def report(self, reports: Sequence[Report]) -> None:
        """Take live reports, provisional: those of the attempt that runs now; a retry reports them again."""

    def rungs(self, rungs: Sequence[RungView]) -> None:
        """Take the state of the rungs, every few seconds and at the end."""

    def flush(self) -> None:
        """Write out what is held back; called whenever no event is waiting."""

    @abstractmethod
    def close(self) -> None:
        """Finish all that is open; called once, after the last event."""


class Audience(Protocol):
    """Everyone who watches one run of a sweep, as the orchestrator sees them."""

    def observe(self, event: Event, decisions: Sequence[Decision]) -> None:
        """Take an event that was journaled, and what the scheduler decided on it."""

    def report(self, reports: Sequence[Report]) -> None:
        """Take live reports, provisional."""

    def say(self, text: str) -> None:
        """Take a line that the user should read."""

    def look(self, course: Course, workers: Workers, elapsed: float, last: bool) -> None:
        """Look at where the sweep stands; called a few times a second, and at the end.

        Args:
            course: Where it stands.
            workers: Who runs it.
            elapsed: Seconds of this run.
            last: Nothing more will come.
        """
