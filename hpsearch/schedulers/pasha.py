"""PASHA: ASHA that trains no longer than it takes to tell who is better.

Bohdal et al., "PASHA: Efficient HPO and NAS with Progressive Resource Allocation", ICLR 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hpsearch.decision import Rungs
from hpsearch.objective import Objective, Place, is_valid
from hpsearch.schedulers.asha import AsynchronousHalving
from hpsearch.schedulers.base import Outcome, RungView, Scheduler
from hpsearch.schedulers.early_terminate import SchedulerCapabilities
from hpsearch.schedulers.soft_ranking import SoftRanking
from hpsearch.schedulers.successive_halving import Halving

__all__ = ["PASHA", "ProgressiveHalving"]


@dataclass(frozen=True)
class PASHA(Halving):
    """ASHA that begins with two rungs, and opens the next one when the two highest rank the same trials unlike.

    Bohdal et al., ICLR 2023, Algorithm 1.
    """

    kind: ClassVar[str] = "pasha"
    capabilities: ClassVar[SchedulerCapabilities] = SchedulerCapabilities(endless=True)
    # Several goals or constraints: not by soft ranking, which compares by distance.
    course: ClassVar[str] = "its shortest course: more rungs open where values rank trials unlike in the two highest"

    def scheduler(self, objective: Objective, run_cap: int | None) -> Scheduler:
        """Build the scheduler."""
        return ProgressiveHalving(self.ends, self.eta, objective, run_cap)

    def summary(self) -> str:
        """Say from where to where at most."""
        return super().summary() + " at most"


class ProgressiveHalving(AsynchronousHalving):
    """Algorithm 1: promote as ASHA does, but from no rung that is the highest open one.

    The first two rungs are open from the beginning. Whenever a trial has ended in the highest open one, the trials that
    have ended there are ranked by their values there and by those in the rung before. Where the two differ by more than
    noise, as `SoftRanking` has it, the next rung is opened, at once and for good.

    Noise is estimated from what trials reported at each iteration, but only once they have ended in the highest open
    rung: a scheduler hears of a trial then. In Syne Tune's implementation those under way count, too. Where no pair
    of the highest rung changed places and changed back, epsilon stays as it was.

    Trials that have ended in the highest open rung wait: they may go on should the next be opened. All else is as in
    `AsynchronousHalving`: once the last rung is open there is no difference.

    Until then a call of `observe` costs O(n R + n log n) for the n trials that have ended in the highest open rung,
    which ends after R iterations.

    Args:
        ends: The iterations that rungs run until, should they be opened.
        eta: 1 of `eta` goes on.
        objective: Ranks the trials of a rung.
        run_cap: How many trials may be created in all.
    """

    def __init__(self, ends: Sequence[int], eta: int, objective: Objective, run_cap: int | None = None) -> None:
        super().__init__([ends], [1], eta, objective, run_cap)
        self._promoting = self._promoting[-1:]
        self._places: dict[int, Place] = {}
        """Of each trial, `Objective.place` of its value at the rung that it has passed last."""
        self._curves: dict[int, dict[int, float]] = {}
        """Of each trial, what it has reported by iteration, where that is a number; less is better."""
        self._ranking = SoftRanking()

    def rungs(self) -> Sequence[RungView]:
        """Give the rungs that are open, as soon as there is a trial."""
        return [view for view in super().rungs() if view.rung <= self._highest]

    def plan(self, bracket: int) -> Rungs:
        """Give (until, no size) of the rungs that are open; none where there is no trial."""
        return super().plan(bracket)[: self._highest + 1]

    @property
    def _highest(self) -> int:
        """The highest rung that is open; trials go on from each one below it."""
        return len(self._promoting)

    def _judge(self, bracket: int, rung: int, outcome: Outcome) -> None:
        super()._judge(bracket, rung, outcome)
        trial, place = outcome.trial, self._objective.place(outcome.value)
        before, self._places[trial] = self._places.get(trial, place), place
        self._take_reports(outcome)
        if rung == self._highest:
            self._ranking.add(before, place, self._curves[trial])
            if not self._ranking.agrees():
                self._promoting.insert(0, (bracket, rung))
                self._ranking = SoftRanking(self._ranking.epsilon)

    def _take_reports(self, outcome: Outcome) -> None:
        """Take what a trial has reported; what it reports anew, NaN as well, replaces what it did before."""
        curve = self._curves.setdefault(outcome.trial, {})
        for report in outcome.reports:
            value = self._objective.reported(report.metrics)
            if is_valid(value):
                curve[report.iteration] = self._objective.place(value)[1]
            else:
                curve.pop(report.iteration, None)
