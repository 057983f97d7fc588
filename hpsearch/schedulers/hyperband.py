"""Hyperband as a sweep asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from hpsearch.objective import Objective
from hpsearch.schedulers.base import Scheduler
from hpsearch.schedulers.brackets import Variant, hyperband_brackets, rung_count
from hpsearch.schedulers.early_terminate import EarlyTerminate
from hpsearch.schedulers.halving import BracketScheduler
from hpsearch.schedulers.successive_halving import check_rungs
from hpsearch.settings import AtLeast, Count

__all__ = ["Hyperband"]


@dataclass(frozen=True)
class Hyperband(EarlyTerminate):
    """Rounds of brackets that trade the number of trials for how early they are judged.

    Li et al., JMLR 18 (2018), Algorithm 1.
    """

    kind: ClassVar[str] = "hyperband"
    raisable: ClassVar[tuple[str, ...]] = ("brackets",)

    min_iter: Count = 1
    """Iterations of the first rung of the widest bracket."""
    eta: Annotated[int, AtLeast(2)] = 3
    """Of each rung, 1 of `eta` goes on."""
    variant: Variant = "paper"
    """Trials per bracket: `paper` rounds up as Algorithm 1 does (81, 34, 15, 8, 5 for R=81), `table` down as the table
    of its first version does (81, 27, 9, 6, 5)."""
    brackets: Count | None = None
    """Brackets to run in all, over all rounds; none: one round, or as many as `run_cap` fills."""

    def check(self) -> None:
        """Check that there is a rung."""
        check_rungs(self.min_iter, self.max_iter)

    @property
    def rungs(self) -> int:
        """Rungs of the widest bracket, which is also the number of brackets in a round."""
        return rung_count(self.min_iter, self.max_iter, self.eta)

    def scheduler(self, objective: Objective, run_cap: int | None) -> Scheduler:
        """Build the scheduler."""
        cycle = hyperband_brackets(self.max_iter, self.min_iter, self.eta, self.variant)
        return BracketScheduler(cycle, self.eta, objective, run_cap, self.brackets)

    def summary(self) -> str:
        """Say from where to where."""
        return f"Hyperband from {self.min_iter} to {self.max_iter} iterations by {self.eta}"

    def raised(self, stored: Self, run_cap: int | None) -> Mapping[str, Any]:
        """Give `brackets` where it is more; unset it is one round, or with `run_cap` no bound at all."""
        if self.brackets is None or (stored.brackets is None and run_cap is not None):
            return {}
        return {"brackets": self.brackets} if self.brackets > (stored.brackets or stored.rungs) else {}
