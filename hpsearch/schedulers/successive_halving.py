"""Successive halving as a sweep asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hpsearch._sweep_checks import InvalidKey
from hpsearch.schedulers.base import Scheduler
from hpsearch.schedulers.brackets import rung_count, successive_halving_bracket
from hpsearch.schedulers.early_terminate import EarlyTerminate, check_integer
from hpsearch.schedulers.halving import BracketScheduler
from hpsearch.trial import Goal

__all__ = ["SuccessiveHalving", "check_rungs"]


@dataclass(frozen=True)
class SuccessiveHalving(EarlyTerminate):
    """One bracket: all trials run `min_iter` iterations, the best 1/eta of them eta times as many, and so on.

    Jamieson and Talwalkar, AISTATS 2016.
    """

    kind: ClassVar[str] = "successive_halving"

    max_iter: int
    """Iterations of the last rung."""
    min_iter: int = 1
    """Iterations of the first rung."""
    eta: int = 3
    trials: int | None = None
    """Trials that start in the bracket; None: as many as leave one for the last rung, eta**(rungs - 1)."""

    def __post_init__(self) -> None:
        check_rungs(self, self.min_iter)
        check_integer(self, "trials", 1)

    @property
    def rungs(self) -> int:
        """Number of rungs."""
        return rung_count(self.min_iter, self.max_iter, self.eta)

    def scheduler(self, goal: Goal, run_cap: int | None) -> Scheduler:
        """Build the scheduler."""
        bracket = successive_halving_bracket(self.max_iter, self.min_iter, self.eta, self.trials)
        return BracketScheduler((bracket,), self.eta, goal, run_cap)

    def summary(self) -> str:
        """Say from where to where."""
        return f"SuccessiveHalving from {self.min_iter} to {self.max_iter} iterations by {self.eta}"


def check_rungs(settings: EarlyTerminate, min_iter: int) -> None:
    """Check the three numbers that make rungs: `max_iter`, `min_iter` and `eta`."""
    check_integer(settings, "max_iter", 1)
    check_integer(settings, "min_iter", 1)
    check_integer(settings, "eta", 2)
    if min_iter > settings.max_iter:
        raise InvalidKey(("min_iter",), f"must be at most max_iter ({settings.max_iter}), got {min_iter}")
