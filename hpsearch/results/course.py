"""How a study went: what its front was, and what it had cost, whenever the front changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hpsearch.events import Entry, Failed, Finished, Opened, Retried, Reverted, Saved, Started
from hpsearch.journal.history import RunningTime
from hpsearch.study.journaled_state import JournaledState
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import Score

__all__ = ["Course", "CourseSoFar", "Moment", "course"]


@dataclass(frozen=True, slots=True)
class Moment:
    """A front, and what it had cost."""

    time: float
    """In seconds since the epoch."""
    trials: int
    """Begun so far."""
    iterations: int
    """That had counted so far; those that were taken back since had their cost, too."""
    seconds: float
    """In which a process ran the sweep and it wasn't paused, of each process from the first segment on that it started;
    where trials are told of, since the first one began."""
    front: tuple[Score, ...]
    """What the trials have that no other one is better than, of one goal the best one's; those that break constraints
    have none."""
    starting: float = 0.0
    """Seconds before those: until workers, searchers and Ray had started, of all processes together."""


@dataclass(frozen=True, slots=True)
class Course:
    """How a study went."""

    changes: tuple[Moment, ...]
    """Every change of the front: a trial saved a checkpoint, ended a segment, failed, was retried or taken back."""
    end: Moment
    """How it stands."""


class CourseSoFar:
    """A course while it goes on."""

    def __init__(self) -> None:
        self.changes: list[Moment] = []
        """Every change of the front."""
        self.now = Moment(0.0, 0, 0, 0.0, ())
        """How it stands."""
        self._running = RunningTime()
        self._starts = True
        """The process that runs the sweep has begun no segment yet."""
        self._began: float | None = None
        """When the first one began."""
        self._counted = 0
        """Iterations that count."""

    def take(self, entry: Entry, journaled: JournaledState) -> None:
        """Take the next entry.

        Args:
            entry: Of the journal.
            journaled: The state that it led to.
        """
        seconds, starting = self._time(entry, journaled.told)
        front = self.now.front
        if isinstance(entry.event, Saved | Finished | Failed | Retried | Reverted):
            front = journaled.records.front()
        changed = front is not self.now.front and front != self.now.front
        iterations = self.now.iterations + max(0, journaled.iterations - self._counted)
        self._counted = journaled.iterations
        self.now = Moment(entry.time, len(journaled.records), iterations, seconds, front, starting)
        if changed:
            self.changes.append(self.now)

    def _time(self, entry: Entry, told: bool) -> tuple[float, float]:
        """Give the seconds by now, and those before that any process took to start."""
        before = self._running.seconds
        self._running.take(entry)
        passed = self._running.seconds - before
        starts, began = self._starts, isinstance(entry.event, Started)
        self._starts = isinstance(entry.event, Opened) or (starts and not began)
        if began and self._began is None:
            self._began = entry.time
        if told:  # by whoever comes, so that nobody knows how long they ran
            return max(self.now.seconds, entry.time - self._began) if self._began is not None else 0.0, 0.0
        return self.now.seconds + passed * (not starts), self.now.starting + passed * starts


def course(sweep: Sweep, entries: Iterable[Entry]) -> Course:
    """Go through a journal."""
    journaled, so_far = JournaledState(sweep), CourseSoFar()
    for entry in journaled.read(entries):
        so_far.take(entry, journaled)
    return Course(tuple(so_far.changes), so_far.now)
