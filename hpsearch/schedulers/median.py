"""The median stopping rule: a trial is stopped if it is worse than the median of the other trials.

Golovin et al., "Google Vizier: A Service for Black-Box Optimization", KDD 2017, section 3.2.1.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from hpsearch.config.checks import InvalidKey
from hpsearch.config.settings import Count
from hpsearch.decision import Decision
from hpsearch.objective import Objective, is_valid
from hpsearch.schedulers.base import NewTrial, Outcome, Run, Scheduler, ran
from hpsearch.schedulers.early_terminate import EarlyTerminate, SchedulerCapabilities
from hpsearch.trial import Score

_LOOKS = 10
"""Default number of iterations at which a trial is judged, including its end."""


@dataclass(frozen=True)
class MedianStopping(EarlyTerminate):
    """Judges each trial at regular iterations (looks), and stops it if it is worse than the median of others there.

    Golovin et al., KDD 2017, section 3.2.1.
    """

    kind: ClassVar[str] = "median"
    capabilities: ClassVar[SchedulerCapabilities] = SchedulerCapabilities(endless=True)

    min_iter: Count | None = None
    """Iterations before a trial is first judged; none: `max_iter` / 10, rounded up."""
    every: Count | None = None
    """Iterations between two judgements, each with a checkpoint; none: as many as before the first."""
    min_trials: Count = 5
    """How many other trials must have reached an iteration before a trial is judged there."""

    def check(self) -> None:
        """Check that `min_iter` isn't greater than `max_iter`."""
        if self.min_iter is not None and self.min_iter > self.max_iter:
            raise InvalidKey(("min_iter",), f"must be at most max_iter ({self.max_iter}), got {self.min_iter}")

    @property
    def looks(self) -> tuple[int, ...]:
        """The iterations at which a trial is judged; the last one is its end."""
        first = -(-self.max_iter // _LOOKS) if self.min_iter is None else self.min_iter
        return (*range(first, self.max_iter, first if self.every is None else self.every), self.max_iter)

    def scheduler(self, objective: Objective, run_cap: int | None) -> Scheduler:
        """Build the scheduler."""
        return MedianStoppingScheduler(self.looks, self.min_trials, objective, run_cap)

    def summary(self) -> str:
        """Return the iterations of the first look and of the end of trials."""
        first, *_ = self.looks
        chosen = "" if self.min_iter is not None else f" (min_iter, not given: max_iter / {_LOOKS})"
        return f"median stopping from {first}{chosen} to {self.max_iter} iterations"


@dataclass(frozen=True, slots=True)
class _Course:
    """Summary of a trial's values at its looks so far, without NaN; lower is better."""

    best: float
    total: float
    looks: int


class MedianStoppingScheduler(Scheduler):
    """Judges each trial when it reaches a look (an iteration at which trials are judged). No trial waits for another.

    At a look, a trial is stopped if its best value at looks so far is worse than the median of the running averages of
    the trials that reached this look before. A running average is the mean of a trial's values at its looks up to this
    one. So the result depends on completion order.

    NaN isn't part of an average. A trial with only NaN is worse than any median. A trial whose trainable returned early
    is complete. Trials that continue run before new ones, the most advanced first.

    A call costs O(log n) comparisons in the number of trials.

    Args:
        looks: The iterations at which trials are judged; the last one is their end.
        min_trials: Minimum number of other trials' averages to judge a trial.
        objective: Defines which values are better.
        run_cap: Maximum number of trials.
    """

    def __init__(self, looks: Sequence[int], min_trials: int, objective: Objective, run_cap: int | None = None) -> None:
        super().__init__(run_cap, [looks])
        self._looks = looks
        self._min_trials = min_trials
        self._objective = objective
        self._averages: list[list[float]] = [[] for _ in looks]
        """For each look, the sorted averages of the trials that reached it; lower is better."""
        self._courses: dict[int, _Course] = {}
        """The courses of undecided trials that have reported a number."""
        self._continuing: list[tuple[int, int]] = []
        """Sorted (-look, trial) of trials that wait for a worker: the most advanced first, then the lower number."""
        self._spared = 0
        """Iterations that decided trials did not run."""

    def upcoming(self) -> Iterator[NewTrial | Run]:
        """Yield the trials that continue, and then the new ones."""
        for look, trial in self._continuing:
            yield Run(trial, self._looks[-look], 0, -look)
        for number in self.new_numbers():
            yield NewTrial(number, self._looks[0])

    def started(self, answer: NewTrial | Run) -> None:
        """Mark the first of `upcoming` as started."""
        if isinstance(answer, Run):
            self._continuing.pop(0)

    def ready(self) -> int:
        """Return the number of trials that continue and of trials to create, which count as 1 without a bound."""
        return len(self._continuing) + self._to_create()

    def observe(self, outcome: Outcome) -> Sequence[Decision]:
        """Receive a trial's outcome; decide immediately whether it continues, is stopped, or is complete.

        Raises:
            ValueError: The trial isn't running.
        """
        _, look = self.end_segment(outcome)
        if outcome.value is None:
            return ()
        until = self._looks[look]
        if outcome.iteration < until or look == len(self._looks) - 1:
            return (self._decided(outcome, "complete", ran(outcome, self._looks[-1])),)
        course = self._moved_on(outcome.trial, outcome.value)
        stops, reason = self._judged(course, look)
        if course is not None and is_valid(course.total):  # infinity minus infinity is NaN
            insort(self._averages[look], course.total / course.looks)
        if stops:
            return (self._decided(outcome, "stop", reason),)
        insort(self._continuing, (-(look + 1), outcome.trial))
        return (Decision(outcome.trial, "promote", reason),)

    def prune(self, trial: int) -> Sequence[Decision]:
        """Treat a trial as failed: it doesn't continue, but its values at earlier looks still count.

        Raises:
            ValueError: The trial neither runs nor waits.
        """
        if trial in self._running:
            return super().prune(trial)
        remaining = [entry for entry in self._continuing if entry[1] != trial]
        if len(remaining) == len(self._continuing):
            raise ValueError(f"only a trial that runs or waits can be pruned, not trial {trial}")
        self._continuing = remaining
        self._courses.pop(trial, None)
        return ()

    def total(self) -> tuple[int, int] | None:
        """Return (trials, their iterations if no further trial is stopped); None without a bound on trials."""
        trials = self._trials()
        return None if trials is None else (trials, trials * self._looks[-1] - self._spared)

    def _moved_on(self, trial: int, value: Score) -> _Course | None:
        """Return a trial's course with its newest value; None if it never reported a number."""
        before = self._courses.get(trial)
        if not is_valid(value):
            return before
        _, shown = self._objective.sort_key(value)
        if before is None:
            course = _Course(shown, shown, 1)
        else:
            course = _Course(min(before.best, shown), before.total + shown, before.looks + 1)
        self._courses[trial] = course
        return course

    def _judged(self, course: _Course | None, look: int) -> tuple[bool, str]:
        """Return whether a trial is stopped, and why."""
        averages, at = self._averages[look], f"iteration {self._looks[look]}"
        if len(averages) < self._min_trials:
            return False, f"{at}: {len(averages)} others were here, {self._min_trials} must have been"
        middle = _median(averages)
        compared = f"{self._shown(middle)}, the median of {len(averages)} others' averages"
        if course is None:
            return True, f"{at}: NaN, against {compared}"
        stops = course.best > middle  # the median of infinities may be NaN: then the trial continues
        worse = "worse" if stops else "no worse"
        return stops, f"{at}: {self._shown(course.best)} at best is {worse} than {compared}"

    def _shown(self, value: float) -> str:
        """Return a value as it was reported."""
        return f"{self._objective.goals[0].signed(value):.6g}"

    def _decided(self, outcome: Outcome, action: Literal["stop", "complete"], reason: str) -> Decision:
        self._courses.pop(outcome.trial, None)
        self._spared += self._looks[-1] - min(outcome.iteration, self._looks[-1])
        return Decision(outcome.trial, action, reason)


def _median(ordered: Sequence[float]) -> float:
    """Return the median of sorted numbers in constant time."""
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
