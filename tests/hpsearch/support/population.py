"""A scheduler that forks trials, as a third party writes it: a population whose worst members copy the best one.

Like population based training (Jaderberg et al. 2017, arXiv:1711.09846), but for its ranking: the worst member that is
known gives way to the best one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from hpsearch import EarlyTerminate
from hpsearch.config.settings import Count
from hpsearch.decision import Decision
from hpsearch.objective import Objective, values_of
from hpsearch.schedulers.base import Answer, Done, NewTrial, Outcome, Run, RungView, Scheduler, Wait
from hpsearch.trial import StateAt

__all__ = ["Population"]


@dataclass(frozen=True)
class Population(EarlyTerminate):
    """Members train side by side; after each `interval` the worst one is replaced by a fork of the best."""

    kind: ClassVar[str] = "tests.hpsearch.support.population:Population"
    forks: ClassVar[bool] = True

    members: Count = 4
    interval: Count = 1

    def scheduler(self, objective: Objective, run_cap: int | None) -> Scheduler:
        return _Population(self, objective, run_cap)

    def summary(self) -> str:
        return f"a population of {self.members} up to {self.max_iter} iterations"


class _Population(Scheduler):
    def __init__(self, asked: Population, objective: Objective, run_cap: int | None) -> None:
        self._asked, self._objective, self._run_cap = asked, objective, run_cap
        first = min(asked.members, asked.members if run_cap is None else run_cap)
        self._queue: deque[NewTrial | Run] = deque(self._member(None, 0) for _ in range(first))
        self._numbered = 0
        self._running: dict[int, int] = {}  # trials to the end of their segments
        self._values: dict[int, float] = {}  # of the members, as they were observed last
        self._reached: dict[int, int] = {}
        self._started = [0] * -(-asked.max_iter // asked.interval)
        self._finished = list(self._started)

    def _member(self, parent: StateAt | None, start: int) -> NewTrial:
        until = self._after(start)
        return NewTrial(-1, until, 0, self._rung(until), parent, start)

    def _after(self, iteration: int) -> int:
        """Give where the segment ends that begins there: rungs end where the intervals do."""
        interval = self._asked.interval
        return min((iteration // interval + 1) * interval, self._asked.max_iter)

    def _rung(self, until: int) -> int:
        return -(-until // self._asked.interval) - 1

    def next(self) -> Answer:
        for answer in self.upcoming():
            self._queue.popleft()
            trial = answer.trial if isinstance(answer, Run) else answer.number
            self._numbered += isinstance(answer, NewTrial)
            assert answer.until is not None
            self._running[trial] = answer.until
            self._started[answer.rung] += 1
            return answer
        return Wait() if self._running else Done()

    def upcoming(self) -> Iterator[NewTrial | Run]:
        number = self._numbered
        for answer in self._queue:
            if isinstance(answer, Run):
                yield answer
            else:
                yield replace(answer, number=number)
                number += 1

    @property
    def busy(self) -> bool:
        return bool(self._running)

    def ready(self) -> int:
        return len(self._queue)

    def needs(self) -> Collection[StateAt]:
        forked = [answer.parent for answer in self._queue if isinstance(answer, NewTrial) and answer.parent is not None]
        members = [StateAt(trial, self._reached[trial]) for trial in self._values]
        return forked + (members if self._running or self._queue else [])

    def observe(self, outcome: Outcome) -> Sequence[Decision]:
        trial, until = outcome.trial, self._running.pop(outcome.trial)
        self._finished[self._rung(until)] += 1
        if outcome.value is None:
            self._values.pop(trial, None)
            return self._replace(trial, self._best(), "")
        self._values[trial], self._reached[trial] = values_of(outcome.value)[0], outcome.iteration
        best = self._best()
        if until == self._asked.max_iter:
            return (Decision(trial, "complete", f"ran all {until}"),)
        ranked = self._objective.rank(self._values)
        if 1 < len(ranked) == self._asked.members and ranked[-1] == trial and self._may_create():
            del self._values[trial]
            return self._replace(trial, best, f"last of {len(ranked)}: trial {best} is forked")
        end = self._after(until)
        self._queue.append(Run(trial, end, 0, self._rung(end)))
        return (Decision(trial, "promote", f"ran {until}"),)

    def _replace(self, trial: int, best: int | None, reason: str) -> Sequence[Decision]:
        if best is not None and self._may_create():
            reached = self._reached[best]
            start = min(reached, self._asked.max_iter - 1)
            self._queue.append(self._member(StateAt(best, reached), start))
        return (Decision(trial, "stop", reason),) if reason else ()

    def _best(self) -> int | None:
        return self._objective.rank(self._values)[0] if self._values else None

    def _may_create(self) -> bool:
        to_come = sum(isinstance(answer, NewTrial) for answer in self._queue)
        return self._run_cap is None or self._numbered + to_come < self._run_cap

    def may_withdraw(self, trial: int) -> bool:
        return False

    def withdraw(self, trial: int) -> None:
        raise ValueError(f"trial {trial} is decided")

    def exhausted(self) -> Sequence[Decision]:
        self._numbered -= 1
        until = self._running.pop(self._numbered)
        self._started[self._rung(until)] -= 1
        self._queue = deque(answer for answer in self._queue if isinstance(answer, Run) or answer.parent is not None)
        return ()

    def extend(self, run_cap: int | None, settings: Mapping[str, Any]) -> None:
        self._run_cap = run_cap if run_cap is not None else self._run_cap

    def rungs(self) -> Sequence[RungView]:
        views = []
        for rung, (started, finished) in enumerate(zip(self._started, self._finished, strict=True)):
            if started:
                until = min((rung + 1) * self._asked.interval, self._asked.max_iter)
                views.append(RungView(0, rung, until, None, started, finished))
        return views

    def total(self) -> tuple[int, int] | None:
        return None
