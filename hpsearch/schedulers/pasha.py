"""PASHA: ASHA that stops increasing the length of training once the ranking of trials is stable.

Bohdal et al., "PASHA: Efficient HPO and NAS with Progressive Resource Allocation", ICLR 2023.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isfinite
from typing import ClassVar

from hpsearch.config.checks import InvalidKey
from hpsearch.decision import Rungs
from hpsearch.objective import Objective, SortKey, is_valid
from hpsearch.schedulers.asha import AsynchronousHalving
from hpsearch.schedulers.base import Outcome, RungView, Scheduler
from hpsearch.schedulers.early_terminate import SchedulerCapabilities
from hpsearch.schedulers.halving import Halving

_PERCENTILE = 0.9
"""Epsilon is this quantile of the distances between swapping trials: N = 90 in the paper."""


@dataclass(frozen=True)
class PASHA(Halving):
    """ASHA that starts with two rungs, and opens the next if the two highest rungs rank the same trials differently.

    Bohdal et al., ICLR 2023, Algorithm 1.
    """

    kind: ClassVar[str] = "pasha"
    capabilities: ClassVar[SchedulerCapabilities] = SchedulerCapabilities(endless=True)
    # Neither several goals nor constraints are supported: soft ranking compares distances.
    course: ClassVar[str] = "its shortest course: more rungs open where values rank trials unlike in the two highest"

    def check(self) -> None:
        """Check that rungs end by iterations.

        Raises:
            InvalidKey: They end by costs.
        """
        super().check()
        if self.resource is not None:
            problem = "must not be given with pasha, which compares trials at equal iterations"
            raise InvalidKey(("resource",), f"{problem}, got {self.resource}", "remove it, or take asha")

    def scheduler(self, objective: Objective, run_cap: int | None) -> Scheduler:
        """Build the scheduler."""
        return ProgressiveHalving(self, objective, run_cap)

    def summary(self) -> str:
        """Return the first and the last rung that may be opened."""
        return super().summary() + " at most"


class ProgressiveHalving(AsynchronousHalving):
    """Algorithm 1: promotes as ASHA does, but never from the highest open rung.

    The first two rungs are open from the start. When a trial has finished the highest open rung, all trials that have
    finished it are ranked twice: by their values there, and by their values in the rung before. If the two rankings
    differ by more than noise (`SoftRanking`), the next rung is opened.

    Noise is estimated from the reports of trials that have finished the highest open rung, since a scheduler observes
    trials at the end of a segment. Syne Tune's implementation also uses running trials. If no pair of trials in the
    highest rung swapped ranks and swapped back, epsilon doesn't change.

    Trials that have finished the highest open rung wait in case the next is opened. Otherwise, and once the last rung
    is open, this is the same as `AsynchronousHalving`.

    Until the last rung is open, a call of `observe` costs O(n R + n log n) for the n trials that have finished the
    highest open rung, which ends after R iterations.

    Args:
        settings: The rungs, and how many trials each promotes.
        objective: Ranks the trials of a rung.
        run_cap: Maximum number of trials.
    """

    def __init__(self, settings: Halving, objective: Objective, run_cap: int | None = None) -> None:
        super().__init__(settings, objective, run_cap)
        self._promoting = self._promoting[-1:]
        self._sort_keys: dict[int, SortKey] = {}
        """Trial to `Objective.sort_key` of its value at the last rung that it has finished."""
        self._curves: dict[int, dict[int, float]] = {}
        """Trial to its reported values by iteration, without NaN; lower is better."""
        self._ranking = SoftRanking()

    def rungs(self) -> Sequence[RungView]:
        """Return the open rungs; empty before the first trial."""
        return [view for view in super().rungs() if view.rung <= self._highest]

    def plan(self, bracket: int) -> Rungs:
        """Return (until, None) of the open rungs; empty before the first trial."""
        return super().plan(bracket)[: self._highest + 1]

    @property
    def _highest(self) -> int:
        """Index of the highest open rung; trials are promoted from every lower rung."""
        return len(self._promoting)

    def _judge(self, bracket: int, rung: int, outcome: Outcome) -> None:
        super()._judge(bracket, rung, outcome)
        trial, sort_key = outcome.trial, self._objective.sort_key(outcome.value)
        before, self._sort_keys[trial] = self._sort_keys.get(trial, sort_key), sort_key
        self._take_reports(outcome)
        if rung == self._highest:
            self._ranking.add(before, sort_key, self._curves[trial])
            if not self._ranking.agrees():
                self._promoting.insert(0, (bracket, rung))
                self._ranking = SoftRanking(self._ranking.epsilon)

    def _take_reports(self, outcome: Outcome) -> None:
        """Add a trial's reports; a repeated iteration replaces the earlier report, even if the new value is NaN."""
        curve = self._curves.setdefault(outcome.trial, {})
        for report in outcome.reports:
            value = self._objective.reported(report.metrics)
            if is_valid(value):
                curve[report.iteration] = self._objective.sort_key(value)[1]
            else:
                curve.pop(report.iteration, None)


class SoftRanking:
    """Compares two rankings of a rung's trials, by their values there and in the rung before, up to noise.

    Bohdal et al., sections 4.2 and 4.3. If the curves of two trials crossed and crossed back, their distance is noise.
    Epsilon is the 90th percentile of the distances between such pairs, at the last iteration that both have reported.
    Values that differ by at most epsilon count as equal.

    Adding a trial costs O(n R) for n trials that have run R iterations; `agrees` costs O(n log n).

    Args:
        epsilon: Initial epsilon, used until a pair has crossed and crossed back.
    """

    def __init__(self, epsilon: float = 0.0) -> None:
        self.epsilon = epsilon
        self._sort_keys: list[tuple[SortKey, SortKey]] = []
        """For each trial, `Objective.sort_key` of its values in (this rung, the rung before)."""
        self._curves: list[Mapping[int, float]] = []
        self._distances: list[float] = []
        """Distances between the pairs that crossed and crossed back, sorted."""

    def add(self, before: SortKey, here: SortKey, curve: Mapping[int, float]) -> None:
        """Add a trial that has finished this rung.

        Args:
            before: `Objective.sort_key` of the trial's value in the rung before, which isn't NaN.
            here: `Objective.sort_key` of the trial's value in this rung.
            curve: The trial's values by iteration, without NaN.
        """
        self._sort_keys.append((here, before))
        for other in self._curves:
            distance = _crossed_back(curve, other)
            if distance is not None:
                insort(self._distances, distance)
        self._curves.append(curve)
        if self._distances:
            self.epsilon = _percentile(self._distances)

    def agrees(self) -> bool:
        """Return whether the two rankings are equal up to noise.

        They are compared rank by rank, by the trials' values in the rung before. Trials with equal values in this rung
        keep their order in the rung before.
        """
        ranked_before = sorted(before for _, before in self._sort_keys)
        ranked_here = [before for _, before in sorted(self._sort_keys)]
        return all(map(self._equal, ranked_here, ranked_before))

    def _equal(self, key: SortKey, other: SortKey) -> bool:
        return key == other or abs(key[1] - other[1]) <= self.epsilon


def _crossed_back(curve: Mapping[int, float], other: Mapping[int, float]) -> float | None:
    """Return the final distance of two curves if they crossed and crossed back; None if not, or if they end equal."""
    gaps = [curve[at] - other[at] for at in sorted(curve.keys() & other.keys())]
    if not gaps or gaps[-1] == 0 or not isfinite(gaps[-1]):
        return None
    orders = (gap > 0 for gap in gaps if gap < 0 or gap > 0)  # the gap between two equal infinities is NaN
    return abs(gaps[-1]) if sum(1 for _ in groupby(orders)) > 2 else None


def _percentile(ordered: Sequence[float]) -> float:
    """Return the 90th percentile of sorted numbers, by linear interpolation."""
    index, fraction = divmod(_PERCENTILE * (len(ordered) - 1), 1)
    low, high = ordered[int(index)], ordered[min(int(index) + 1, len(ordered) - 1)]
    return low + fraction * (high - low)
