"""A scheduler as a third party writes it: in one file, named in a sweep by its import path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from hpsearch import EarlyTerminate
from hpsearch.config.settings import Count
from hpsearch.decision import Decision
from hpsearch.objective import Objective
from hpsearch.schedulers.base import Answer, Done, NewTrial, Outcome, Run, RungView, Scheduler, Wait

__all__ = ["Doubling"]


@dataclass(frozen=True)
class Doubling(EarlyTerminate):
    """One trial after the other; each is promoted to twice its length until `max_iter`, whatever it reports."""

    kind: ClassVar[str] = "tests.hpsearch.support.doubling:Doubling"
    raisable: ClassVar[tuple[str, ...]] = ("trials",)

    trials: Count = 2
    pace: Literal["even", "hasty"] = "even"
    patience: float | None = None

    def scheduler(self, objective: Objective, run_cap: int | None) -> Scheduler:
        return _Doubling(self.max_iter, self.trials)

    def summary(self) -> str:
        return f"doubling up to {self.max_iter} iterations"

    def raised(self, stored: Doubling, run_cap: int | None) -> Mapping[str, Any]:
        return {"trials": self.trials} if self.trials > stored.trials else {}


class _Doubling(Scheduler):
    def __init__(self, max_iter: int, trials: int) -> None:
        self._max_iter, self._trials = max_iter, trials
        self._numbered = 0
        self._reached = 0
        self._until = 0  # of the trial that runs; 0: none does
        self._exhausted = False

    def next(self) -> Answer:
        for answer in self.upcoming():
            self._until = answer.until or 0
            self._numbered += isinstance(answer, NewTrial)
            return answer
        return Wait() if self._until else Done()

    def upcoming(self) -> Iterator[NewTrial | Run]:
        if not self._until:
            trial = self._numbered - 1
            if self._reached:
                until = min(2 * self._reached, self._max_iter)
                yield Run(trial, until, trial, (until - 1).bit_length())
            elif self.ready():
                yield NewTrial(trial + 1, 1, trial + 1)

    @property
    def busy(self) -> bool:
        return bool(self._until)

    def may_withdraw(self, trial: int) -> bool:
        return False

    def withdraw(self, trial: int) -> None:
        raise ValueError(f"trial {trial} is decided")

    def ready(self) -> int:
        if self._until:
            return 0
        return 1 if self._reached or (self._numbered < self._trials and not self._exhausted) else 0

    def observe(self, outcome: Outcome) -> Sequence[Decision]:
        reached, self._until, self._reached = self._until, 0, 0
        if outcome.value is None:
            return ()
        if reached == self._max_iter:
            return (Decision(outcome.trial, "complete", f"ran all {reached}"),)
        self._reached = reached
        return (Decision(outcome.trial, "promote", f"ran {reached}, twice as many follow"),)

    def exhausted(self) -> Sequence[Decision]:
        self._numbered, self._until, self._exhausted = self._numbered - 1, 0, True
        return ()

    def extend(self, run_cap: int | None, settings: Mapping[str, Any]) -> None:
        self._trials = max(settings.get("trials", 0), self._trials)
        self._exhausted = False

    def rungs(self) -> Sequence[RungView]:
        return ()

    def total(self) -> tuple[int, int] | None:
        return None
