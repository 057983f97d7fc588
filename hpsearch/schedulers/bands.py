"""W&B's Hyperband: running trials are stopped if they are worse than others were at the same iteration.

The rule is `hyperband_stop_runs` of W&B's `sweeps` package: one bracket of Li et al., "Hyperband", JMLR 18, 2018.
Trials are judged as values are reported, so no trial waits for another.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from hpsearch.config.checks import InvalidKey
from hpsearch.config.settings import AtLeast, Count
from hpsearch.decision import Decision
from hpsearch.objective import Objective, is_valid
from hpsearch.schedulers.base import NewTrial, Outcome, Run, Scheduler, ran
from hpsearch.schedulers.early_terminate import EarlyTerminate, SchedulerCapabilities
from hpsearch.trial import Report

_MOST_BANDS = 100


@dataclass(frozen=True)
class Bands(EarlyTerminate):
    """Runs each trial without a pause, and stops it if it isn't among the best 1/eta of the trials that reached a band.

    W&B's `early_terminate` of type hyperband.
    """

    kind: ClassVar[str] = "bands"
    capabilities: ClassVar[SchedulerCapabilities] = SchedulerCapabilities(endless=True, live=True)
    course: ClassVar[str] = "the longest course of it: no trial is stopped"

    max_iter: Count | None = None  # type: ignore[assignment]  # only this scheduler allows trials without a last iteration
    """Iterations of a trial at most; none: it runs until it ends on its own."""
    min_iter: Count | None = None
    """The first band; the others are at `min_iter` times powers of `eta`, without end. Either this or `last_iter`."""
    eta: Annotated[float, AtLeast(1)] = 3
    """At each band the best 1 of `eta` continue; more than 1."""
    last_iter: Count | None = None
    """Bands are at `last_iter` divided by powers of `eta`. W&B calls it `max_iter`, and ends no trial there either."""
    bands: Count | None = None
    """Number of bands below `last_iter`; none: all. W&B calls it `s`."""
    strict: bool = False
    """`true`: the value at the band must be good enough; `false`: the best value since."""

    def check(self) -> None:
        """Check that there is a band."""
        if not self.eta > 1:
            raise InvalidKey(("eta",), f"must be more than 1, got {self.eta:g}")
        if (self.min_iter is None) == (self.last_iter is None):
            which = "neither" if self.min_iter is None else "both"
            raise InvalidKey(("min_iter",), f"or last_iter must be given, one of them, got {which}")
        if self.bands is not None and self.last_iter is None:
            raise InvalidKey(("bands",), "has a meaning only with last_iter", "remove it")
        if not self.ends:
            raise InvalidKey(("last_iter",), f"must leave a band, which none is at {self.last_iter} / {self.eta:g}")

    @property
    def ends(self) -> tuple[int, ...]:
        """The iterations of the bands, rising."""
        if self.min_iter is not None:
            ends = (int(self.min_iter * self.eta**power) for power in range(_MOST_BANDS))
        else:
            assert self.last_iter is not None, "checked"
            powers = range(1, 1 + (self.bands or _MOST_BANDS))
            ends = (int(self.last_iter / self.eta**power) for power in powers)
        return tuple(sorted({end for end in ends if end >= 1}))

    def scheduler(self, objective: Objective, run_cap: int | None) -> Scheduler:
        """Build the scheduler."""
        return BandScheduler(self, objective, run_cap)

    def summary(self) -> str:
        """Return the iterations of the first bands."""
        shown = [end for end in self.ends[:3] if self.max_iter is None or end < self.max_iter]
        more = ", ..." if len(self.ends) > 3 else ""
        end = "until they end by themselves" if self.max_iter is None else f"to {self.max_iter} iterations"
        return f"trials {end}, of which the best 1/{self.eta:g} go on at {', '.join(map(str, shown))}{more}"


@dataclass(slots=True)
class _Course:
    """A trial's reported values; lower is better."""

    last: int = 0
    bests: list[tuple[int, float]] = field(default_factory=list)
    """(iteration, value) of each new best value."""
    at: dict[int, float] = field(default_factory=dict)
    """Band to the trial's value at the band."""

    @property
    def best(self) -> float:
        return self.bests[-1][1] if self.bests else math.inf


class BandScheduler(Scheduler):
    """Judges a trial at each report by the last band that it reached.

    The threshold at a band is the value that follows the best floor(n / eta) of the n values reported there, as in W&B.
    So with two trials, the worse one is stopped. A trial is stopped if its value at the band (`strict`), or its best
    value so far, is worse than the threshold. This is decided by live reports only. The outcome records that the trial
    was stopped, so that a replay leads to the same decision.

    NaN is ignored: it doesn't count at a band, and stops no trial.

    Args:
        settings: The bands, and which trials continue at each.
        objective: Defines which values are better.
        run_cap: Maximum number of trials.
    """

    def __init__(self, settings: Bands, objective: Objective, run_cap: int | None = None) -> None:
        super().__init__(run_cap, [[settings.max_iter]])
        self._bands = settings.ends
        self._eta = settings.eta
        self._max_iter = settings.max_iter
        self._strict = settings.strict
        self._objective = objective
        self._courses: dict[int, _Course] = {}
        self._at: dict[int, dict[int, float]] = {band: {} for band in self._bands}
        """Band to the values of trials at the band, by trial."""
        self._spared = 0

    def upcoming(self) -> Iterator[NewTrial | Run]:
        """Yield the trials that are still to be created."""
        for number in self.new_numbers():
            yield NewTrial(number, self._max_iter)

    def ready(self) -> int:
        """Return the number of trials that are still to be created; 1 if it has no bound."""
        return self._to_create()

    def watch(self, report: Report) -> str | None:
        """Receive a report of a running trial; return why the trial is stopped, or None."""
        if report.trial not in self._running:
            return None
        self._take_report(report)
        return self._behind(report.trial, report.iteration)

    def observe(self, outcome: Outcome) -> Sequence[Decision]:
        """Receive a trial's outcome: it is complete, was stopped, or failed.

        Raises:
            ValueError: The trial isn't running.
        """
        self.end_segment(outcome)
        if outcome.value is None:
            return ()
        for report in outcome.reports:
            self._take_report(report)
        if self._max_iter is not None:
            self._spared += self._max_iter - outcome.iteration
        if outcome.stopped:
            return (Decision(outcome.trial, "stop", outcome.stopped),)
        return (Decision(outcome.trial, "complete", ran(outcome, self._max_iter)),)

    def total(self) -> tuple[int, int] | None:
        """Return (trials, their iterations if no further trial is stopped); None if either has no bound."""
        trials = self._trials()
        if trials is None or self._max_iter is None:
            return None
        return trials, trials * self._max_iter - self._spared

    def _take_report(self, report: Report) -> None:
        course = self._courses.setdefault(report.trial, _Course())
        if report.iteration <= course.last:
            self._courses[report.trial] = course = self._before(report.trial, course, report.iteration)
        course.last = report.iteration
        score = self._objective.reported(report.metrics)
        if not is_valid(score):
            return
        (value,) = self._objective.point(score)
        if value < course.best:
            course.bests.append((report.iteration, value))
        if report.iteration in self._at:
            course.at[report.iteration] = self._at[report.iteration][report.trial] = value

    def _before(self, trial: int, course: _Course, iteration: int) -> _Course:
        """Return a trial's course without reports from an iteration on: they are repeated, or the attempt was lost."""
        for band in [band for band in course.at if band >= iteration]:
            del course.at[band], self._at[band][trial]
        return _Course(iteration - 1, [best for best in course.bests if best[0] < iteration], course.at)

    def _behind(self, trial: int, iteration: int) -> str | None:
        count = bisect_right(self._bands, iteration)
        if count == 0:
            return None
        band, course = self._bands[count - 1], self._courses[trial]
        if band not in course.at:
            return None
        values = sorted(self._at[band].values())
        threshold = values[int(len(values) / self._eta)]
        value = course.at[band] if self._strict else course.best
        if not value > threshold:
            return None
        behind = f"{self._shown(value)} is behind {self._shown(threshold)}"
        return (
            f"iteration {iteration}: {behind}, of {len(values)} trials at iteration {band}, top 1/{self._eta:g} go on"
        )

    def _shown(self, value: float) -> str:
        """Return a value as it was reported."""
        return f"{self._objective.goals[0].signed(value):.6g}"
