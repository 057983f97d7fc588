"""How a study went: what its front was, and what it had cost, whenever the front changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hpsearch.events import Failed, Finished, Opened, Retried, Reverted
from hpsearch.study.journaled_state import Entry, JournaledState
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import Score

__all__ = ["Course", "Moment", "course"]


@dataclass(frozen=True, slots=True)
class Moment:
    """A front, and what it had cost."""

    time: float
    """In seconds since the epoch."""
    trials: int
    """Begun so far."""
    iterations: int
    """That count so far."""
    seconds: float
    """That the sweep has run: the time between the end of a process and the beginning of the next doesn't count, but
    where trials are told of."""
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


def course(sweep: Sweep, entries: Iterable[Entry]) -> Course:
    """Go through a journal."""
    journaled = JournaledState(sweep)
    changes: list[Moment] = []
    now = Moment(0.0, 0, 0, 0.0, ())
    for entry in journaled.read(entries):
        gap = isinstance(entry.event, Opened) and not journaled.told
        seconds = now.seconds + (0.0 if gap or not now.time else max(0.0, entry.time - now.time))
        front = now.front
        if isinstance(entry.event, Finished | Failed | Retried | Reverted):
            front = tuple(row.score for row in journaled.leaders() if row.feasible and row.score is not None)
        changed = front != now.front
        now = Moment(entry.time, len(journaled.records), journaled.iterations, seconds, front)
        if changed:
            changes.append(now)
    return Course(tuple(changes), now)
