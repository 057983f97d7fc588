"""The scheduler's seam: how far each trial goes.

A scheduler is pure: no clock, no thread, no I/O, no randomness. The same calls give the same answers, which is
what makes resuming a replay. `next` that answers `Wait` or `Done` changes nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpsearch.decision import Decision, Rungs
from hpsearch.trial import Report, Score, StateAt

__all__ = ["Answer", "Done", "NewTrial", "Outcome", "Run", "RungView", "Scheduler", "Wait"]


@dataclass(frozen=True, slots=True)
class NewTrial:
    """Create the next trial and run it until the end of iteration `until`."""

    number: int
    """The new trial's number: always one more than the last."""
    until: int | None
    bracket: int = 0
    """Counts from 0 over all rounds. Trials of one bracket that run at the same time are compared with each other."""
    rung: int = 0
    """Counts from 0 in the bracket."""
    parent: StateAt | None = None
    """What it is forked from: it gets the newest checkpoint that there was then, and params from the searcher's
    `explore`. Where there is no checkpoint, it starts from zero. The next new trial stays the next one, with its parent
    or without, until it has started."""
    start: int = 0
    """Iterations that a fork counts as done, less than `until`: those of its parent where training goes on. Where the
    checkpoint is of an earlier iteration, it starts there."""


@dataclass(frozen=True, slots=True)
class Run:
    """Run this paused trial on until the end of iteration `until`."""

    trial: int
    until: int
    bracket: int = 0
    """That of the trial's `NewTrial`."""
    rung: int = 0


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to start before another outcome is observed."""


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing will ever be started again, and nothing is running."""


Answer = NewTrial | Run | Wait | Done


@dataclass(frozen=True, slots=True)
class Outcome:
    """A trial reached the end of its segment, or failed for good."""

    trial: int
    iteration: int
    value: Score | None
    """What it is judged by: the metric, or more where one number isn't enough; NaN where it is not a number, None where
    the trial failed."""
    reports: Sequence[Report] = ()
    """Those since its last outcome that count, unless it failed; iterations rise. A trial that had to begin anew gives
    those of former segments once more."""
    stopped: str = ""
    """Why `watch` had it stopped before the end of its segment; empty where it wasn't."""


@dataclass(frozen=True, slots=True)
class RungView:
    """One rung, for tables."""

    bracket: int
    """Counts from 0 over all rounds."""
    rung: int
    until: int | None
    size: int | None
    """Trials that will run here; None where no bound is known."""
    started: int
    finished: int
    """Trials that reached `until` or failed on the way."""


class Scheduler(ABC):
    """Says how far each trial goes."""

    def needs(self) -> Collection[StateAt]:
        """Give the states that may still be forked: their checkpoints are kept. One that was left out once may be gone.

        Asked after each event.
        """
        return ()

    @abstractmethod
    def next(self) -> Answer:
        """Say what to start now; the answer counts as started."""

    @abstractmethod
    def upcoming(self) -> Iterator[NewTrial | Run]:
        """Give what `next` would answer, one by one, before `Wait` or `Done`; changes nothing.

        It may have no end. It holds until the scheduler is told anything.
        """

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether an answer waits for its outcome."""

    @abstractmethod
    def ready(self) -> int:
        """Count the answers that `next` would give now before `Wait` or `Done`; changes nothing.

        New trials of which no number is known yet, such as those of a bracket that has not begun, count as one.
        """

    def watch(self, report: Report) -> str | None:
        """Take a report of a trial that runs, which may be lost yet; say why it is to be stopped, None where it isn't.

        A scheduler whose settings are `live` is asked at each report, in any order among trials; its outcome then says
        whether the trial was stopped. What is decided later must follow from outcomes alone.
        """
        return None

    @abstractmethod
    def observe(self, outcome: Outcome) -> Sequence[Decision]:
        """Take a trial's outcome; answer the decisions that follow, in a fixed order.

        Called exactly once for each `NewTrial` and `Run` that was answered, in any order.
        """

    @abstractmethod
    def may_withdraw(self, trial: int) -> bool:
        """Say whether a trial failed, and nothing was decided since that it had a part in."""

    @abstractmethod
    def withdraw(self, trial: int) -> None:
        """Take back the outcome of a trial that failed: it is running again, and will be observed again.

        Raises:
            ValueError: It may not be withdrawn.
        """

    def prune(self, trial: int) -> Sequence[Decision]:
        """Take a trial for one that has failed, as a user says that it goes no further; answer what follows for others.

        It runs, or it waits undecided between two segments. Who lets trials wait overrides this: it must neither go on
        nor be waited for. It won't be withdrawn.

        Raises:
            ValueError: The trial neither runs nor waits, or one that waits can't be taken back.
        """
        return self.observe(Outcome(trial, 0, None))

    @abstractmethod
    def exhausted(self) -> Sequence[Decision]:
        """The searcher had no params for the last `NewTrial`: take that answer back and ask for no more."""

    @abstractmethod
    def extend(self, run_cap: int | None, settings: Mapping[str, Any]) -> None:
        """Raise the bounds from here on. Undoes `exhausted`.

        Args:
            run_cap: How many trials may be created in all; None: as many as before.
            settings: Those of this scheduler's own that are raised, by their names.

        Raises:
            ValueError: A bound would become lower, or isn't one of this scheduler's.
        """

    @abstractmethod
    def rungs(self) -> Sequence[RungView]:
        """Rungs of the brackets begun so far."""

    def plan(self, bracket: int) -> Rungs:
        """Give (until, size) of a bracket's rungs, as `rungs` does; none where the bracket hasn't begun.

        Asked after every event of one of its trials, so it should not grow with the number of brackets.
        """
        return tuple((view.until, view.size) for view in self.rungs() if view.bracket == bracket)

    @abstractmethod
    def total(self) -> tuple[int, int] | None:
        """(trials, iterations when each promotion resumes) of the whole sweep, or None where no bound is known."""
