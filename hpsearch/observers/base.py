"""The observer's seam: whoever watches a sweep. The sweep neither waits for an observer nor fails with it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hpsearch.decision import Decision
from hpsearch.events import Event
from hpsearch.schedulers.base import RungView
from hpsearch.study.state import SweepState
from hpsearch.sweep.sweep import Sweep
from hpsearch.task import Workers
from hpsearch.trial import Report

__all__ = ["Observed", "Observer", "Observers", "Record"]


@dataclass(frozen=True, slots=True)
class Observed:
    """The study that an observer is made for."""

    directory: Path
    """The study's own."""
    sweep: Sweep
    created: float
    """Seconds since the epoch."""
    identity: str = ""
    """Which study this is, wherever it lies; empty: the one in this directory."""


@dataclass(frozen=True, slots=True)
class Record:
    """An event that was journaled, and what the scheduler decided on it."""

    seq: int
    """Its number in the journal, from 1 without a gap."""
    time: float
    """When it was journaled, in seconds since the epoch."""
    event: Event
    decisions: Sequence[Decision] = ()


class Observer(ABC):
    """Watches a sweep, on a thread of its own, where it is made too; an exception ends the watching, not the sweep."""

    deadline: float = 30.0
    """Seconds that one call may take, and that the end of the sweep waits for the rest; then it is let go."""

    remedy: str = "resuming tells it what it hasn't seen"
    """What makes up for what it missed, once it was let go; one line, for the user."""

    keeps: bool = False
    """What it writes stays, and a killed process may not have come to the end of it: whoever resumes a study that is
    finished shows it to this observer again."""

    def seen(self) -> int:
        """Get ready, and give the `seq` of the last record that it holds from former runs; 0 for none.

        Called once, first. It is told the records after that one, those of former runs included.
        """
        return 0

    @abstractmethod
    def observe(self, record: Record) -> None:
        """Take a record; their order is the journal's."""

    def report(self, reports: Sequence[Report]) -> None:
        """Take live reports, provisional: those of the attempt that runs now; a retry reports them again."""

    def rungs(self, rungs: Sequence[RungView]) -> None:
        """Take the state of the rungs, every few seconds and at the end.

        The records of former runs come before the first time.
        """

    def flush(self) -> None:
        """Write out what is held back; called whenever no record is waiting."""

    @abstractmethod
    def close(self) -> None:
        """Finish all that is open; called once, after the last record."""


class Observers(Protocol):
    """Everyone who watches one run of a sweep, as the orchestrator sees them."""

    def observe(self, record: Record) -> None:
        """Take an event that was journaled, and what the scheduler decided on it."""

    def report(self, reports: Sequence[Report]) -> None:
        """Take live reports, provisional."""

    def say(self, text: str) -> None:
        """Take a line that the user should read."""

    def look(self, sweep_state: SweepState, workers: Workers, elapsed: float, last: bool) -> None:
        """Look at where the sweep stands; called a few times a second, and at the end.

        Args:
            sweep_state: Where it stands.
            workers: Who runs it.
            elapsed: Seconds of this run.
            last: Nothing more will come.
        """
