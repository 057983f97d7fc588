"""A scheduler as a third party writes it: in one file, named in a sweep by its import path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Literal

from hpsearch import EarlyTerminate
from hpsearch.config.settings import Count
from hpsearch.decision import Decision
from hpsearch.objective import Objective
from hpsearch.schedulers.base import NewTrial, Outcome, Run, Scheduler


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
        super().__init__(trials)
        self._max_iter = max_iter
        self._next: Run | None = None

    def upcoming(self) -> Iterator[NewTrial | Run]:
        if self._next is not None:
            yield self._next
        elif not self.busy:
            for number in islice(self.new_numbers(), 1):
                yield NewTrial(number, 1, number)

    def started(self, answer: NewTrial | Run) -> None:
        self._next = None

    def observe(self, outcome: Outcome) -> Sequence[Decision]:
        self.end_segment(outcome)
        if outcome.value is None:
            return ()
        reached = outcome.iteration
        if reached == self._max_iter:
            return (Decision(outcome.trial, "complete", f"ran all {reached}"),)
        until = min(2 * reached, self._max_iter)
        self._next = Run(outcome.trial, until, outcome.trial, (until - 1).bit_length())
        return (Decision(outcome.trial, "promote", f"ran {reached}, twice as many follow"),)

    def may_withdraw(self, trial: int) -> bool:
        return False

    def extend(self, run_cap: int | None, settings: Mapping[str, Any]) -> None:
        super().extend(settings.get("trials"), {})
