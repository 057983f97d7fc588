"""Population based training as a sweep names it.

Jaderberg et al., "Population Based Training of Neural Networks", 2017, arXiv:1711.09846.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from hpsearch.config.checks import InvalidKey
from hpsearch.config.settings import AtLeast, Count
from hpsearch.objective import Objective
from hpsearch.schedulers.base import Scheduler
from hpsearch.schedulers.early_terminate import EarlyTerminate, SchedulerCapabilities
from hpsearch.schedulers.population import PopulationBasedTraining

__all__ = ["PBT"]

_TURNS = 10
"""Where nobody says how often a member is judged, its training has so many intervals."""


@dataclass(frozen=True)
class PBT(EarlyTerminate):
    """A population trains side by side; at each `interval` the worst are replaced by forks of the best.

    Jaderberg et al. 2017, arXiv:1711.09846.
    """

    kind: ClassVar[str] = "pbt"
    capabilities: ClassVar[SchedulerCapabilities] = SchedulerCapabilities(
        outcome_constraints=True, forks=True, newest=True
    )

    population: Annotated[int, AtLeast(2)] = 20
    """Number of members. With fewer workers than members, they take turns."""
    interval: Count | None = None
    """Iterations between two judgements of a member, each with a checkpoint; none: `max_iter` / 10, rounded up."""
    quantile: float = 0.2
    """The share of the population that is replaced, and that is copied; at least one member once all are known. Up to
    0.5."""

    def check(self) -> None:
        """Check that there is something to judge, and that nobody is best and worst at once."""
        if not 0 < self.quantile <= 0.5:
            raise InvalidKey(("quantile",), f"must be more than 0 and at most 0.5, got {self.quantile}")
        if len(self.ends) < 2:
            given = ("max_iter", self.max_iter) if self.interval is None else ("interval", self.interval)
            bound = "at least 2" if self.interval is None else f"less than max_iter ({self.max_iter})"
            raise InvalidKey((given[0],), f"must be {bound}, so that members are judged on the way, got {given[1]}")

    @property
    def ends(self) -> tuple[int, ...]:
        """The iterations at which members are judged; the last one is their end."""
        every = -(-self.max_iter // _TURNS) if self.interval is None else self.interval
        return (*range(every, self.max_iter, every), self.max_iter)

    @property
    def least_trials(self) -> int:
        """The members; forks count as well."""
        return self.population

    def scheduler(self, objective: Objective, run_cap: int | None) -> Scheduler:
        """Build the scheduler."""
        return PopulationBasedTraining(self.ends, self.population, self.quantile, objective, run_cap)

    def summary(self) -> str:
        """Say how many train, how far, and how often they are judged."""
        first, *_ = self.ends
        chosen = "" if self.interval is not None else f" (interval, not given: max_iter / {_TURNS})"
        return f"a population of {self.population}, judged every {first}{chosen} of {self.max_iter} iterations"
