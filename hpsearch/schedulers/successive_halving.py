"""Successive halving as a sweep asks for it, and what Hyperband shares with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from hpsearch.checks import InvalidKey
from hpsearch.objective import Objective
from hpsearch.schedulers.base import Scheduler
from hpsearch.schedulers.brackets import rung_count, successive_halving_bracket
from hpsearch.schedulers.early_terminate import EarlyTerminate
from hpsearch.schedulers.halving import BracketScheduler
from hpsearch.settings import AtLeast, Count

__all__ = ["Halving", "SuccessiveHalving"]


@dataclass(frozen=True)
class Halving(EarlyTerminate):
    """Rungs from `min_iter` to `max_iter` iterations, each `eta` times as long as the one before."""

    min_iter: Count = 1
    """Iterations of the first rung; where there are several brackets, of the widest one's."""
    eta: Annotated[int, AtLeast(2)] = 3
    """Of each rung, 1 of `eta` goes on."""

    def check(self) -> None:
        """Check that there is a rung."""
        if self.min_iter > self.max_iter:
            raise InvalidKey(("min_iter",), f"must be at most max_iter ({self.max_iter}), got {self.min_iter}")

    @property
    def rungs(self) -> int:
        """Rungs of the widest bracket, which in Hyperband is also the number of brackets in a round."""
        return rung_count(self.min_iter, self.max_iter, self.eta)

    def summary(self) -> str:
        """Say from where to where."""
        return f"{type(self).__name__} from {self.min_iter} to {self.max_iter} iterations by {self.eta}"


@dataclass(frozen=True)
class SuccessiveHalving(Halving):
    """One bracket: all trials run `min_iter` iterations, the best 1/eta of them eta times as many, and so on.

    Jamieson and Talwalkar, AISTATS 2016.
    """

    kind: ClassVar[str] = "successive_halving"

    trials: Count | None = None
    """Trials that start; none: as many as leave one for the last rung, `eta` to the power of (rungs - 1)."""

    def scheduler(self, objective: Objective, run_cap: int | None) -> Scheduler:
        """Build the scheduler."""
        bracket = successive_halving_bracket(self.max_iter, self.min_iter, self.eta, self.trials)
        return BracketScheduler((bracket,), self.eta, objective, run_cap)
