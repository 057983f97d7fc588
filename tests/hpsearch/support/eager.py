"""An asynchronous scheduler, as a third party writes it: who is among the best of its rung is promoted at once.

Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, algorithm 2, with one bracket.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from hpsearch import EarlyTerminate
from hpsearch.config.settings import Count
from hpsearch.decision import Decision
from hpsearch.objective import Objective, values_of
from hpsearch.schedulers.base import Answer, Done, NewTrial, Outcome, Run, RungView, Scheduler, Wait

__all__ = ["Eager"]


@dataclass(frozen=True)
class Eager(EarlyTerminate):
    """Never decides that a trial stops: one that was passed over may still be among the best of its rung."""

    kind: ClassVar[str] = "tests.hpsearch.support.eager:Eager"

    eta: Count = 3
    trials: Count = 9

    def scheduler(self, objective: Objective, run_cap: int | None) -> Scheduler:
        return _Eager(self, objective, run_cap)

    def summary(self) -> str:
        return f"asynchronous halving up to {self.max_iter} iterations by {self.eta}"


class _Eager(Scheduler):
    def __init__(self, asked: Eager, objective: Objective, run_cap: int | None) -> None:
        self._eta, self._objective = max(asked.eta, 2), objective
        self._most = asked.trials if run_cap is None else run_cap
        self._ends = [1]
        while self._ends[-1] < asked.max_iter:
            self._ends.append(min(self._ends[-1] * self._eta, asked.max_iter))
        self._numbered = 0
        self._running: dict[int, int] = {}  # trials to the rungs that they run in
        self._values: list[dict[int, float]] = [{} for _ in self._ends]
        self._failed: dict[int, int] = {}
        self._gone_on: list[set[int]] = [set() for _ in self._ends]
        self._promoted: list[tuple[int, int]] = []  # (rung to run in, trial)
        self._started, self._finished = [0] * len(self._ends), [0] * len(self._ends)

    def next(self) -> Answer:
        for answer in self.upcoming():
            if isinstance(answer, NewTrial):
                self._numbered += 1
            else:
                self._promoted.remove((answer.rung, answer.trial))
            self._running[answer.number if isinstance(answer, NewTrial) else answer.trial] = answer.rung
            self._started[answer.rung] += 1
            return answer
        return Wait() if self._running else Done()

    def upcoming(self) -> Iterator[NewTrial | Run]:
        for rung, trial in sorted(self._promoted, reverse=True):
            yield Run(trial, self._ends[rung], 0, rung)
        for number in range(self._numbered, self._most):
            yield NewTrial(number, self._ends[0])

    @property
    def busy(self) -> bool:
        return bool(self._running)

    def ready(self) -> int:
        return len(self._promoted) + max(self._most - self._numbered, 0)

    def observe(self, outcome: Outcome) -> Sequence[Decision]:
        trial, rung = outcome.trial, self._running.pop(outcome.trial)
        self._finished[rung] += 1
        if outcome.value is None:
            self._failed[trial] = rung
            return ()
        self._values[rung][trial] = values_of(outcome.value)[0]
        if rung == len(self._ends) - 1:
            return (Decision(trial, "complete", f"ran all {self._ends[-1]}"),)
        return self._promote(rung)

    def _promote(self, rung: int) -> Sequence[Decision]:
        ranked = self._objective.rank(self._values[rung])
        able = [trial for trial in ranked[: len(ranked) // self._eta] if trial not in self._gone_on[rung]]
        self._gone_on[rung].update(able)
        self._promoted += [(rung + 1, trial) for trial in able]
        return [Decision(trial, "promote", f"rung {rung}: among the best of {len(ranked)}") for trial in able]

    def may_withdraw(self, trial: int) -> bool:
        return trial in self._failed

    def withdraw(self, trial: int) -> None:
        if trial not in self._failed:
            raise ValueError(f"trial {trial} has not failed")
        rung = self._failed.pop(trial)
        self._finished[rung] -= 1
        self._running[trial] = rung

    def exhausted(self) -> Sequence[Decision]:
        self._numbered -= 1
        del self._running[self._numbered]
        self._started[0] -= 1
        self._most = self._numbered
        return ()

    def extend(self, run_cap: int | None, settings: Mapping[str, Any]) -> None:
        self._most = self._most if run_cap is None else run_cap

    def rungs(self) -> Sequence[RungView]:
        return [
            RungView(0, rung, end, None, self._started[rung], self._finished[rung])
            for rung, end in enumerate(self._ends)
            if self._started[rung]
        ]

    def total(self) -> tuple[int, int] | None:
        return None
