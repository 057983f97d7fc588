"""A rung that is judged while trials still come to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect, insort
from collections.abc import Iterator, Sequence
from itertools import islice

from hpsearch.objective import Fronts, Objective, Place, is_valid
from hpsearch.objective.fronts import Point
from hpsearch.trial import Score

__all__ = ["RankedRung", "RunningRung", "SortedRung", "running_rung"]


class RunningRung(ABC):
    """The trials that have ended in a rung: those that wait, and those whose lot is settled.

    Args:
        eta: 1 of `eta` may go on.
        objective: Ranks them.
    """

    def __init__(self, eta: int, objective: Objective) -> None:
        self._eta = eta
        self._objective = objective

    @abstractmethod
    def __len__(self) -> int:
        """Count the trials that have ended here."""

    @property
    def top(self) -> int:
        """How many of those that have ended here are good enough to go on."""
        return len(self) // self._eta

    @abstractmethod
    def add(self, score: Score, trial: int) -> None:
        """Take a trial that has ended here."""

    @abstractmethod
    def promotable(self) -> Iterator[int]:
        """Give the trials that may go on, the best first; promoting one makes no other one less so."""

    @abstractmethod
    def promote(self) -> None:
        """Let the first of `promotable` go on."""

    @abstractmethod
    def remove(self, trial: int) -> bool:
        """Forget a trial that waits; say whether there was one."""

    @abstractmethod
    def stop(self) -> Sequence[tuple[int, int, int, bool]]:
        """Stop all that wait; give (trial, its place from 1, of how many, whether it is NaN), the best first."""


def running_rung(eta: int, objective: Objective) -> RunningRung:
    """Build the rung for an objective."""
    return RankedRung(eta, objective) if objective.several else SortedRung(eta, objective)


class SortedRung(RunningRung):
    """For one goal, by which a trial's place is known from its score: a call searches sorted lists.

    It looks at those only that may go on.
    """

    def __init__(self, eta: int, objective: Objective) -> None:
        super().__init__(eta, objective)
        self._waiting: list[tuple[Place, int, bool]] = []
        """(place, trial, whether it is NaN), best first."""
        self._settled: list[tuple[Place, int, bool]] = []
        """Promoted or stopped: they keep their places in the ranking."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._settled)

    def add(self, score: Score, trial: int) -> None:
        """Take a trial that has ended here."""
        insort(self._waiting, (self._objective.place(score), trial, not is_valid(score)))

    def promotable(self) -> Iterator[int]:
        """Give the trials that may go on, the best first; promoting one makes no other one less so."""
        top = self.top
        for ahead, place in enumerate(self._waiting):
            _, trial, nan = place
            if nan or ahead + bisect(self._settled, place) >= top:
                return
            yield trial

    def promote(self) -> None:
        """Let the first of `promotable` go on."""
        insort(self._settled, self._waiting.pop(0))

    def remove(self, trial: int) -> bool:
        """Forget a trial that waits; say whether there was one."""
        left = [place for place in self._waiting if place[1] != trial]
        found = len(left) < len(self._waiting)
        self._waiting = left
        return found

    def stop(self) -> Sequence[tuple[int, int, int, bool]]:
        """Stop all that wait; give (trial, its place from 1, of how many, whether it is NaN), the best first."""
        size = len(self)
        stopped = [
            (place[1], ahead + bisect(self._settled, place) + 1, size, place[2])
            for ahead, place in enumerate(self._waiting)
        ]
        self._settled = sorted(self._settled + self._waiting)
        self._waiting = []
        return stopped


class RankedRung(RunningRung):
    """For several goals, by which a trial's place hangs on all others: fronts that are kept up as trials come.

    A call goes through the best 1/eta.
    """

    def __init__(self, eta: int, objective: Objective) -> None:
        super().__init__(eta, objective)
        self._fronts = Fronts()
        self._points: dict[int, Point] = {}
        """Those of the fronts."""
        self._beyond: list[tuple[Place, int, bool]] = []
        """(place, trial, whether it is NaN) of those that break constraints or are NaN, best first."""
        self._settled: set[int] = set()

    def __len__(self) -> int:
        return len(self._fronts) + len(self._beyond)

    def add(self, score: Score, trial: int) -> None:
        """Take a trial that has ended here."""
        if self._objective.is_feasible(score):
            self._points[trial] = self._objective.point(score)
            self._fronts.add(trial, self._points[trial])
        else:
            insort(self._beyond, (self._objective.beyond(score), trial, not is_valid(score)))

    def promotable(self) -> Iterator[int]:
        """Give the trials that may go on, the best first; promoting one makes no other one less so."""
        best = islice(self._ranked(), self.top)
        return (trial for trial, nan in best if not nan and trial not in self._settled)

    def promote(self) -> None:
        """Let the first of `promotable` go on."""
        self._settled.add(next(self.promotable()))

    def remove(self, trial: int) -> bool:
        """Forget a trial that waits; say whether there was one."""
        before = len(self)
        if trial in self._settled:
            return False
        self._points.pop(trial, None)
        self._fronts = Fronts.of(self._points)
        self._beyond = [place for place in self._beyond if place[1] != trial]
        return len(self) < before

    def stop(self) -> Sequence[tuple[int, int, int, bool]]:
        """Stop all that wait; give (trial, its place from 1, of how many, whether it is NaN), the best first."""
        ranked = list(self._ranked())
        stopped = [
            (trial, place, len(ranked), nan)
            for place, (trial, nan) in enumerate(ranked, start=1)
            if trial not in self._settled
        ]
        self._settled.update(trial for trial, _ in ranked)
        return stopped

    def _ranked(self) -> Iterator[tuple[int, bool]]:
        """Give (trial, whether it is NaN) of all, best first."""
        yield from ((trial, False) for trial in self._fronts.ranked())
        yield from ((trial, nan) for _, trial, nan in self._beyond)
