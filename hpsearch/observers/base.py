"""The interface of observers. A sweep doesn't wait for an observer, and doesn't fail if an observer fails."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hpsearch.decision import Decision
from hpsearch.events import Event
from hpsearch.schedulers.base import RungView
from hpsearch.space import Space
from hpsearch.study.state import SweepState
from hpsearch.sweep.sweep import Sweep
from hpsearch.task import Workers
from hpsearch.trial import Report


@dataclass(frozen=True, slots=True)
class Observed:
    """The study that an observer is created for."""

    directory: Path
    """The study's directory."""
    sweep: Sweep
    created: float
    """Time of the study's creation, in seconds since the epoch."""
    identity: str = ""
    """The study's identity, independent of its path. If empty, the directory identifies it."""
    spaces: Sequence[Space] = ()
    """The search space as the study was created, and that of each change; empty: that of the sweep."""


@dataclass(frozen=True, slots=True)
class Record:
    """A journaled event and the scheduler's decisions on it."""

    seq: int
    """Number of the record in the journal: 1, 2, 3, ... without gaps."""
    time: float
    """Time at which the event was journaled, in seconds since the epoch."""
    event: Event
    decisions: Sequence[Decision] = ()


class Observer(ABC):
    """Base class of observers. Each observer is created and called on its own thread.

    An observer that raises an exception is dropped. The sweep continues.
    """

    deadline: float = 30.0
    """Time limit in seconds for one call, and for all that remains at the end of the sweep. Then the observer is
    dropped."""

    remedy: str = "resuming tells it what it hasn't seen"
    """How the user recovers the records that a dropped observer missed, in one line."""

    keeps: bool = False
    """Whether the observer's output persists. It may be incomplete if the process was killed, so resuming a finished
    study replays all records to the observer."""

    def seen(self) -> int:
        """Prepare, and return the `seq` of the last record that was received in earlier runs; 0 for none.

        This is the first call and happens once. Then the observer receives all later records, including those of
        earlier runs.
        """
        return 0

    @abstractmethod
    def observe(self, record: Record) -> None:
        """Receive a record. Records arrive in journal order."""

    def report(self, reports: Sequence[Report]) -> None:
        """Receive live reports of the running attempt. They are provisional: a retry reports them again."""

    def rungs(self, rungs: Sequence[RungView]) -> None:
        """Receive the state of the rungs, every few seconds and at the end.

        The records of earlier runs come before the first call.
        """

    def flush(self) -> None:
        """Write buffered output. Called whenever no record is waiting."""

    @abstractmethod
    def close(self) -> None:
        """Finish and close all output. Called once, after the last record."""


class Observers(Protocol):
    """Interface of the orchestrator to all observers and displays of a run."""

    def observe(self, record: Record) -> None:
        """Receive a journaled event and the scheduler's decisions."""

    def report(self, reports: Sequence[Report]) -> None:
        """Receive provisional live reports."""

    def say(self, text: str) -> None:
        """Show a line to the user."""

    def look(self, sweep_state: SweepState, workers: Workers, elapsed: float, last: bool) -> None:
        """Show the sweep's state. Called a few times a second, and at the end.

        Args:
            sweep_state: State of the sweep.
            workers: Number of busy and available workers.
            elapsed: Seconds since the start of this run.
            last: Whether this is the last call.
        """
