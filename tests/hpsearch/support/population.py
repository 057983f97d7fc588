"""A scheduler that forks trials, as a third party writes it: a population whose worst members copy the best one.

Like population based training (Jaderberg et al. 2017, arXiv:1711.09846), but for its ranking: the worst member that is
known gives way to the best one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from hpsearch import EarlyTerminate
from hpsearch.config.settings import Count
from hpsearch.decision import Decision
from hpsearch.objective import Objective, values_of
from hpsearch.schedulers.base import NewTrial, Outcome, Run, Scheduler
from hpsearch.schedulers.early_terminate import SchedulerCapabilities
from hpsearch.trial import StateAt


@dataclass(frozen=True)
class Population(EarlyTerminate):
    """Members train side by side; after each `interval` the worst one is replaced by a fork of the best."""

    kind: ClassVar[str] = "tests.hpsearch.support.population:Population"
    capabilities: ClassVar[SchedulerCapabilities] = SchedulerCapabilities(forks=True)

    members: Count = 4
    interval: Count = 1

    def scheduler(self, objective: Objective, run_cap: int | None) -> Scheduler:
        return _Population(self, objective, run_cap)

    def summary(self) -> str:
        return f"a population of {self.members} up to {self.max_iter} iterations"


class _Population(Scheduler):
    def __init__(self, settings: Population, objective: Objective, run_cap: int | None) -> None:
        super().__init__(run_cap)
        self._settings, self._objective = settings, objective
        first = min(settings.members, settings.members if run_cap is None else run_cap)
        self._queue: deque[NewTrial | Run] = deque(self._member(None, 0) for _ in range(first))
        self._values: dict[int, float] = {}  # of the members, as they were observed last
        self._reached: dict[int, int] = {}

    def _member(self, parent: StateAt | None, start: int) -> NewTrial:
        until = self._after(start)
        return NewTrial(-1, until, 0, self._rung(until), parent, start)

    def _after(self, iteration: int) -> int:
        """Return where the segment ends that begins there: rungs end where the intervals do."""
        interval = self._settings.interval
        return min((iteration // interval + 1) * interval, self._settings.max_iter)

    def _rung(self, until: int) -> int:
        return -(-until // self._settings.interval) - 1

    def upcoming(self) -> Iterator[NewTrial | Run]:
        number = self._numbered
        for answer in self._queue:
            if isinstance(answer, Run):
                yield answer
            else:
                yield replace(answer, number=number)
                number += 1

    def started(self, answer: NewTrial | Run) -> None:
        self._queue.popleft()

    def needs(self) -> Collection[StateAt]:
        forked = [answer.parent for answer in self._queue if isinstance(answer, NewTrial) and answer.parent is not None]
        members = [StateAt(trial, self._reached[trial]) for trial in self._values]
        return forked + (members if self.busy or self._queue else [])

    def observe(self, outcome: Outcome) -> Sequence[Decision]:
        trial, (_, rung) = outcome.trial, self.end_segment(outcome)
        until = min((rung + 1) * self._settings.interval, self._settings.max_iter)
        if outcome.value is None:
            self._values.pop(trial, None)
            return self._replace(trial, self._best(), "")
        self._values[trial], self._reached[trial] = values_of(outcome.value)[0], outcome.iteration
        best = self._best()
        if until == self._settings.max_iter:
            return (Decision(trial, "complete", f"ran all {until}"),)
        ranked = self._objective.rank(self._values)
        if 1 < len(ranked) == self._settings.members and ranked[-1] == trial and self._may_create():
            del self._values[trial]
            return self._replace(trial, best, f"last of {len(ranked)}: trial {best} is forked")
        end = self._after(until)
        self._queue.append(Run(trial, end, 0, self._rung(end)))
        return (Decision(trial, "promote", f"ran {until}"),)

    def _replace(self, trial: int, best: int | None, reason: str) -> Sequence[Decision]:
        if best is not None and self._may_create():
            reached = self._reached[best]
            start = min(reached, self._settings.max_iter - 1)
            self._queue.append(self._member(StateAt(best, reached), start))
        return (Decision(trial, "stop", reason),) if reason else ()

    def _best(self) -> int | None:
        return self._objective.rank(self._values)[0] if self._values else None

    def _may_create(self) -> bool:
        to_come = sum(isinstance(answer, NewTrial) for answer in self._queue)
        return self._run_cap is None or self._numbered + to_come < self._run_cap

    def may_withdraw(self, trial: int) -> bool:
        return False

    def exhausted(self) -> Sequence[Decision]:
        super().exhausted()
        self._queue = deque(answer for answer in self._queue if isinstance(answer, Run) or answer.parent is not None)
        return ()
