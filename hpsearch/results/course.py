"""The course of a study: its Pareto front and the cost so far, at each change of the front."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hpsearch.events import Entry, Failed, Finished, Opened, Retried, Reverted, Saved, Started
from hpsearch.journal.history import RunningTime
from hpsearch.study.journaled_state import JournaledState
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import Score


@dataclass(frozen=True, slots=True)
class Moment:
    """A Pareto front, and the study's cost up to it."""

    time: float
    """Time in seconds since the epoch."""
    trials: int
    """Number of trials begun so far."""
    iterations: int
    """Number of iterations that counted so far, including iterations that were reverted later."""
    seconds: float
    """Running seconds without pauses. Each process counts from the first segment that it started. With ask/tell, these
    are the seconds since the first trial began."""
    front: tuple[Score, ...]
    """Scores of the non-dominated feasible trials; with one goal, the score of the best trial."""
    starting: float = 0.0
    """Start-up seconds of all processes in total: until workers, searchers and Ray had started."""


class Course:
    """The course of a study. Its entries update it."""

    def __init__(self) -> None:
        self.changes: list[Moment] = []
        """Every change of the front so far. The front can change if a trial saves a checkpoint, ends a segment, fails,
        is retried or is reverted."""
        self.end = Moment(0.0, 0, 0, 0.0, ())
        """The latest state."""
        self._running = RunningTime()
        self._starts = True
        """Whether the process that runs the sweep is still starting: it hasn't started a segment."""
        self._began: float | None = None
        """Start time of the first segment."""
        self._counted = 0
        """Number of iterations that count, as of the last entry."""

    def take(self, entry: Entry, journaled: JournaledState) -> None:
        """Apply the next entry.

        Args:
            entry: An entry of the journal.
            journaled: State of the study after the entry.
        """
        seconds, starting = self._time(entry, journaled.is_ask_tell)
        front = self.end.front
        if isinstance(entry.event, Saved | Finished | Failed | Retried | Reverted):
            front = journaled.records.front()
        changed = front is not self.end.front and front != self.end.front
        iterations = self.end.iterations + max(0, journaled.iterations - self._counted)
        self._counted = journaled.iterations
        self.end = Moment(entry.time, len(journaled.records), iterations, seconds, front, starting)
        if changed:
            self.changes.append(self.end)

    def _time(self, entry: Entry, is_told: bool) -> tuple[float, float]:
        """Return (running seconds, start-up seconds) so far."""
        before = self._running.seconds
        self._running.take(entry)
        passed = self._running.seconds - before
        starts, began = self._starts, isinstance(entry.event, Started)
        self._starts = isinstance(entry.event, Opened) or (starts and not began)
        if began and self._began is None:
            self._began = entry.time
        if is_told:  # unknown processes run the trials, so the running time is unknown
            return max(self.end.seconds, entry.time - self._began) if self._began is not None else 0.0, 0.0
        return self.end.seconds + passed * (not starts), self.end.starting + passed * starts


def course(sweep: Sweep, entries: Iterable[Entry]) -> Course:
    """Return the course of a study from its journal."""
    journaled, found = JournaledState(sweep), Course()
    for entry in journaled.read(entries):
        found.take(entry, journaled)
    return found
