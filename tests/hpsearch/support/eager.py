"""An asynchronous scheduler, as a third party writes it: who is among the best of its rung is promoted at once.

Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, algorithm 2, with one bracket.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from hpsearch import EarlyTerminate
from hpsearch.config.settings import Count
from hpsearch.decision import Decision
from hpsearch.objective import Objective, values_of
from hpsearch.schedulers.base import NewTrial, Outcome, Run, Scheduler


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
    def __init__(self, settings: Eager, objective: Objective, run_cap: int | None) -> None:
        super().__init__(settings.trials if run_cap is None else run_cap)
        self._eta, self._objective = max(settings.eta, 2), objective
        self._until = [1]
        while self._until[-1] < settings.max_iter:
            self._until.append(min(self._until[-1] * self._eta, settings.max_iter))
        self._values: list[dict[int, float]] = [{} for _ in self._until]
        self._gone_on: list[set[int]] = [set() for _ in self._until]
        self._promoted: list[tuple[int, int]] = []  # (rung to run in, trial)

    def upcoming(self) -> Iterator[NewTrial | Run]:
        for rung, trial in sorted(self._promoted, reverse=True):
            yield Run(trial, self._until[rung], 0, rung)
        for number in self.new_numbers():
            yield NewTrial(number, self._until[0])

    def started(self, answer: NewTrial | Run) -> None:
        if isinstance(answer, Run):
            self._promoted.remove((answer.rung, answer.trial))

    def observe(self, outcome: Outcome) -> Sequence[Decision]:
        _, rung = self.end_segment(outcome)
        if outcome.value is None:
            return ()
        self._values[rung][outcome.trial] = values_of(outcome.value)[0]
        if rung == len(self._until) - 1:
            return (Decision(outcome.trial, "complete", f"ran all {self._until[-1]}"),)
        return self._promote(rung)

    def _promote(self, rung: int) -> Sequence[Decision]:
        ranked = self._objective.rank(self._values[rung])
        able = [trial for trial in ranked[: len(ranked) // self._eta] if trial not in self._gone_on[rung]]
        self._gone_on[rung].update(able)
        self._promoted += [(rung + 1, trial) for trial in able]
        return [Decision(trial, "promote", f"rung {rung}: among the best of {len(ranked)}") for trial in able]
