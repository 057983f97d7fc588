"""The observer's seam. The sweep neither waits for an observer nor fails with it."""

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
    """How to recover what it missed after it was dropped; one line, for the user."""

    keeps: bool = False
    """Its output persists, and may be incomplete after a killed process: a resume of a finished study replays the study
    to it."""

    def seen(self) -> int:
        """Prepare, and return the `seq` of the last record that it already has from earlier runs; 0 for none.

        Called once, first. It then receives the later records, those of earlier runs included.
        """
        return 0

    @abstractmethod
    def observe(self, record: Record) -> None:
        """Receive a record, in the order of the journal."""

    def report(self, reports: Sequence[Report]) -> None:
        """Receive provisional live reports of the running attempt; a retry reports them again."""

    def rungs(self, rungs: Sequence[RungView]) -> None:
        """Receive the state of the rungs, every few seconds and at the end.

        The records of earlier runs come before the first call.
        """

    def flush(self) -> None:
        """Write buffered output; called whenever no record is waiting."""

    @abstractmethod
    def close(self) -> None:
        """Finish all that is open; called once, after the last record."""


class Observers(Protocol):
    """Everyone who watches one run of a sweep, as the orchestrator sees them."""

    def observe(self, record: Record) -> None:
        """Receive a journaled event and the scheduler's decisions."""

    def report(self, reports: Sequence[Report]) -> None:
        """Receive provisional live reports."""

    def say(self, text: str) -> None:
        """Show a line to the user."""

    def look(self, sweep_state: SweepState, workers: Workers, elapsed: float, last: bool) -> None:
        """Show the sweep's state; called a few times a second, and at the end.

        Args:
            sweep_state: The state.
            workers: The workers.
            elapsed: Seconds of this run.
            last: Whether this is the last call.
        """
