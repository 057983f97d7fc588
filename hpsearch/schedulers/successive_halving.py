"""The settings of successive halving, and those that Hyperband shares."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Self

from hpsearch.config.checks import InvalidKey
from hpsearch.config.settings import AtLeast, Count
from hpsearch.objective import Objective
from hpsearch.schedulers.base import Scheduler
from hpsearch.schedulers.brackets import RungLaw, rung_ends, successive_halving_bracket
from hpsearch.schedulers.early_terminate import EarlyTerminate, SchedulerCapabilities
from hpsearch.schedulers.halving import BracketScheduler

__all__ = ["Halving", "SuccessiveHalving"]


CHOSEN_RUNGS = 3
"""Without a `min_iter`, this many factors of `eta` lie between the first rung and `max_iter`."""


@dataclass(frozen=True)
class Halving(EarlyTerminate):
    """Rungs from `min_iter` to `max_iter` iterations, each `eta` times as long as the one before."""

    capabilities: ClassVar[SchedulerCapabilities] = SchedulerCapabilities(several_goals=True, outcome_constraints=True)

    min_iter: Count | None = None
    """Iterations of the first rung (of the first bracket); none: `max_iter` / `eta`^3, rounded up, because one
    iteration rarely tells trials apart."""
    eta: Annotated[int, AtLeast(2)] = 3
    """Of each rung, 1 of `eta` is promoted."""
    rungs: RungLaw = field(default="geometric", kw_only=True)
    """Where rungs end: `geometric` at `min_iter` times powers of `eta`, and at `max_iter` (1, 3, 9, 27, 50); `paper` at
    `max_iter` divided by powers of `eta`, rounded down (1, 5, 16, 50)."""

    def check(self) -> None:
        """Check that there is a rung."""
        if self.min_iter is not None and self.min_iter > self.max_iter:
            raise InvalidKey(("min_iter",), f"must be at most max_iter ({self.max_iter}), got {self.min_iter}")

    @property
    def shortest(self) -> int:
        """Iterations of the first rung, chosen if there is no `min_iter`; `paper` may make it longer."""
        return -(-self.max_iter // self.eta**CHOSEN_RUNGS) if self.min_iter is None else self.min_iter

    @property
    def ends(self) -> tuple[int, ...]:
        """Where the rungs of the widest bracket end; in Hyperband there are as many brackets in a round."""
        return rung_ends(self.shortest, self.max_iter, self.eta, self.rungs)

    def summary(self) -> str:
        """Return the first and the last rung, and how the first was chosen if there is no `min_iter`."""
        chosen = "" if self.min_iter is not None else f" (min_iter, not given: max_iter / {self.eta}^{CHOSEN_RUNGS})"
        return f"{type(self).__name__} from {self.ends[0]}{chosen} to {self.max_iter} iterations by {self.eta}"

    def as_stored(self, stored: Self) -> Self:
        """Return the stored settings of the rungs if these end where those do."""
        return replace(self, min_iter=stored.min_iter, rungs=stored.rungs) if self.ends == stored.ends else self


@dataclass(frozen=True)
class SuccessiveHalving(Halving):
    """One bracket: all trials run `min_iter` iterations, the best 1/eta of them eta times as many, and so on.

    Jamieson and Talwalkar, AISTATS 2016.
    """

    kind: ClassVar[str] = "successive_halving"
    capabilities: ClassVar[SchedulerCapabilities] = replace(Halving.capabilities, in_order=True)

    trials: Count | None = None
    """Trials that start; none: as many as leave one for the last rung, `eta` to the power of (rungs - 1)."""

    def scheduler(self, objective: Objective, run_cap: int | None) -> Scheduler:
        """Build the scheduler."""
        bracket = successive_halving_bracket(self.max_iter, self.shortest, self.eta, self.trials, self.rungs)
        return BracketScheduler((bracket,), self.eta, objective, run_cap)
