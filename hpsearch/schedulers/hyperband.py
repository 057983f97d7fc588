"""The settings of Hyperband."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from hpsearch.config.settings import Count
from hpsearch.objective import Objective
from hpsearch.schedulers.base import Scheduler
from hpsearch.schedulers.brackets import Variant, hyperband_brackets
from hpsearch.schedulers.early_terminate import SchedulerCapabilities
from hpsearch.schedulers.halving import BracketScheduler
from hpsearch.schedulers.successive_halving import Halving

__all__ = ["Hyperband"]


@dataclass(frozen=True)
class Hyperband(Halving):
    """Rounds of brackets that trade the number of trials for how early they are judged.

    Li et al., JMLR 18 (2018), Algorithm 1.
    """

    kind: ClassVar[str] = "hyperband"
    capabilities: ClassVar[SchedulerCapabilities] = replace(Halving.capabilities, in_order=True)
    raisable: ClassVar[tuple[str, ...]] = ("brackets",)

    min_iter: Count = 1
    """Iterations of the first rung of the first bracket."""
    variant: Variant = "paper"
    """Trials per bracket: `paper` rounds up as Algorithm 1 (81, 34, 15, 8, 5 for R=81), `table` rounds down as the
    table of its first version (81, 27, 9, 6, 5)."""
    brackets: Count | None = None
    """Number of brackets, over all rounds; none: one round, or as many as `run_cap` fills."""

    def scheduler(self, objective: Objective, run_cap: int | None) -> Scheduler:
        """Build the scheduler."""
        cycle = hyperband_brackets(self.max_iter, self.min_iter, self.eta, self.variant, self.rungs)
        return BracketScheduler(cycle, self.eta, objective, run_cap, self.brackets)

    def raised(self, stored: Self, run_cap: int | None) -> Mapping[str, Any]:
        """Return `brackets` if it is more. Unset, it is one round, or no bound if there is a `run_cap`."""
        if self.brackets is None or (stored.brackets is None and run_cap is not None):
            return {}
        return {"brackets": self.brackets} if self.brackets > (stored.brackets or len(stored.ends)) else {}
