"""How a study went: what its front was, and what it had cost, whenever the front changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hpsearch.events import Failed, Finished, Retried, Reverted
from hpsearch.study.journaled_state import Entry, JournaledState
from hpsearch.study.running_time import RunningTime
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
    """In which a process ran the sweep and it wasn't paused; where trials are told of, since the first one."""
    front: tuple[Score, ...]
    """What the trials have that no other one is better than, of one goal the best one's; those that break constraints
    have none."""


@dataclass(frozen=True, slots=True)
class Course:
    """How a study went."""

    changes: tuple[Moment, ...]
    """Every change of the front: a trial ended a segment, failed, was retried or taken back."""
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
        self._began: float | None = None

    def take(self, entry: Entry, journaled: JournaledState) -> None:
        """Take the next entry.

        Args:
            entry: Of the journal.
            journaled: The state that it led to.
        """
        self._running.take(entry)
        self._began = entry.time if self._began is None else self._began
        seconds = entry.time - self._began if journaled.told else self._running.seconds
        front = self.now.front
        if isinstance(entry.event, Finished | Failed | Retried | Reverted):
            front = tuple(row.score for row in journaled.leaders() if row.feasible and row.score is not None)
        changed = front != self.now.front
        iterations = max(self.now.iterations, journaled.iterations)
        self.now = Moment(entry.time, len(journaled.records), iterations, seconds, front)
        if changed:
            self.changes.append(self.now)


def course(sweep: Sweep, entries: Iterable[Entry]) -> Course:
    """Go through a journal."""
    journaled, so_far = JournaledState(sweep), CourseSoFar()
    for entry in journaled.read(entries):
        so_far.take(entry, journaled)
    return Course(tuple(so_far.changes), so_far.now)
