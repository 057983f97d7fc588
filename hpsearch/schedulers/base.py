"""The interface of schedulers, which decide how far each trial runs, and the texts of their reasons.

A scheduler is pure: it uses no clock, thread, I/O or randomness. The same calls return the same answers, so that a
study resumes by replaying its journal.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpsearch.decision import Decision, Rungs
from hpsearch.objective import is_valid
from hpsearch.trial import Report, Score, StateAt

RungIndex = tuple[int, int]
"""(bracket, rung)."""

_MOST_COUNTED = 1_000
"""Maximum number of segments that `ready` counts."""


@dataclass(frozen=True, slots=True)
class NewTrial:
    """Create the next trial and run it until the end of iteration `until`."""

    number: int
    """The new trial's number: always one more than the last."""
    until: int | None
    bracket: int = 0
    """Index of the bracket over all rounds, from 0. Trials of a bracket are compared with each other."""
    rung: int = 0
    """Index of the rung in the bracket, from 0."""
    parent: StateAt | None = None
    """The state that the trial is forked from. The trial gets the newest checkpoint up to that state, and params from
    the searcher's `explore`. Without a checkpoint it starts from scratch. Until the next new trial has started, its
    parent must not change."""
    start: int = 0
    """Iterations that count as done for a fork, less than `until`: those of its parent if training continues. If the
    checkpoint is of an earlier iteration, the fork starts after that iteration."""
    configuration: int | None = None
    """Index of the trial's configuration, from 0, if configurations are repeated."""
    repeat: int = 0
    """Which repeat of the configuration the trial is. The first one, 0, gets new params, the others the same."""


@dataclass(frozen=True, slots=True)
class Run:
    """Resume this paused trial until the end of iteration `until`."""

    trial: int
    until: int
    bracket: int = 0
    """The bracket of the trial's `NewTrial`."""
    rung: int = 0


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can start before another outcome is observed."""


@dataclass(frozen=True, slots=True)
class Done:
    """No trial is running, and none will start any more."""


Answer = NewTrial | Run | Wait | Done


@dataclass(frozen=True, slots=True)
class Outcome:
    """A trial reached the end of its segment, or failed permanently."""

    trial: int
    iteration: int
    value: Score | None
    """The metric, which may be NaN, or a `JointScore` if the sweep has several goals or constraints. None if the trial
    failed."""
    reports: Sequence[Report] = ()
    """The reports since the trial's last outcome, in the order of iterations; empty if it failed. A trial that had to
    start over repeats the reports of earlier segments."""
    stopped: str = ""
    """Why `watch` stopped the trial before the end of its segment; empty if it didn't."""
    resource: str | None = None
    """If rungs end by costs: what `iteration` counts, rounded down."""


@dataclass(frozen=True, slots=True)
class RungView:
    """One rung, for tables."""

    bracket: int
    """Index of the bracket over all rounds, from 0."""
    rung: int
    until: int | None
    size: int | None
    """Number of trials that will run in this rung; None if unknown."""
    started: int
    finished: int
    """Number of trials that reached `until` or failed before."""


class Scheduler(ABC):
    """Decides how far each trial runs.

    A scheduler implements `upcoming` and `observe`; `started` if it has its own state; and `extend` if it has other
    bounds than `run_cap`. The other methods have defaults, which use the counts of trials, rungs and failures of this
    class; override them if your scheduler has more precise values.

    Args:
        run_cap: Maximum number of trials; None: as many as the searcher suggests.
        ends: For each bracket, the iterations at which its rungs end (None: until the trainable returns), if they are
            known before a trial reaches them.
    """

    def __init__(self, run_cap: int | None = None, ends: Sequence[Sequence[int | None]] = ()) -> None:
        self._run_cap = run_cap
        self._ends = ends
        self._numbered = 0
        self._exhausted = False
        self._running: dict[int, RungIndex] = {}
        self._failed: dict[int, RungIndex] = {}
        self._started: Counter[RungIndex] = Counter()
        self._finished: Counter[RungIndex] = Counter()
        self._plans: dict[int, dict[int, int | None]] = {}
        """For each bracket with trials, rung to the iteration at which it ends."""

    @abstractmethod
    def upcoming(self) -> Iterator[NewTrial | Run]:
        """Yield what could start now, in order, without changing the state.

        The numbers of new trials come from `new_numbers`. The iterator may be infinite. Its items stay the same until
        the next call that changes the state.
        """

    @abstractmethod
    def observe(self, outcome: Outcome) -> Sequence[Decision]:
        """Receive a trial's outcome; return the decisions that follow, in a fixed order.

        Implementations call `end_segment` first. This is called exactly once for each `NewTrial` and `Run` that was
        started, in any order.
        """

    def started(self, answer: NewTrial | Run) -> None:
        """Update the state of the derived class: the first item of `upcoming` was started."""

    def extend(self, run_cap: int | None, settings: Mapping[str, Any]) -> None:
        """Raise the bounds, and create trials again after `exhausted`.

        Args:
            run_cap: Maximum number of trials; None: unchanged.
            settings: Name to new value of the scheduler's settings to raise.

        Raises:
            ValueError: A bound would become lower, or this scheduler doesn't have it.
        """
        if settings:
            raise ValueError(f"only `run_cap` can be raised, got {', '.join(settings)}")
        if run_cap is not None:
            if self._run_cap is None:
                raise ValueError(f"bounds can only be raised: `run_cap` has no bound so far, got {run_cap}")
            if run_cap < self._run_cap:
                raise ValueError(f"bounds can only be raised: `run_cap` is {self._run_cap}, got {run_cap}")
            self._run_cap = run_cap
        self._exhausted = False

    def new_numbers(self) -> Iterable[int]:
        """Return the numbers of the trials that may still be created; infinite without `run_cap`."""
        if self._exhausted:
            return ()
        return itertools.count(self._numbered) if self._run_cap is None else range(self._numbered, self._run_cap)

    def end_segment(self, outcome: Outcome) -> RungIndex:
        """Count a trial's segment as ended; return the (bracket, rung) that it ran in.

        Raises:
            ValueError: The trial isn't running.
        """
        index = self._running.pop(outcome.trial, None)
        if index is None:
            raise ValueError(f"an outcome must be of a running trial; trial {outcome.trial} is not running")
        self._finished[index] += 1
        if outcome.value is None:
            self._failed[outcome.trial] = index
        return index

    def next(self) -> Answer:
        """Start and return the first item of `upcoming`; if there is none, return `Wait` or `Done`."""
        answer = next(self.upcoming(), None)
        if answer is None:
            return Wait() if self.busy else Done()
        self.started(answer)
        if isinstance(answer, NewTrial):
            trial = answer.number
            self._numbered += 1
        else:
            trial = answer.trial
        index = answer.bracket, answer.rung
        self._running[trial] = index
        self._started[index] += 1
        self._note_rung(answer)
        return answer

    def _note_rung(self, answer: NewTrial | Run) -> None:
        """Store the iteration at which the rung of an answer ends, for `rungs` and `plan`."""
        if answer.bracket not in self._plans:
            self._plans[answer.bracket] = dict(enumerate(self._ends[answer.bracket])) if self._ends else {}
        self._plans[answer.bracket][answer.rung] = answer.until

    @property
    def busy(self) -> bool:
        """Whether a trial is running, so that its outcome is still to be observed."""
        return bool(self._running)

    def ready(self) -> int:
        """Return the number of segments that could start now, up to a limit, without changing the state.

        New trials without a bound, or of brackets that haven't started, may count as one.
        """
        return sum(1 for _ in itertools.islice(self.upcoming(), _MOST_COUNTED))

    def needs(self) -> Collection[StateAt]:
        """Return the states that may still be forked; their checkpoints are kept. Called after each event.

        A state that was left out once may no longer be available.
        """
        return ()

    def watch(self, report: Report) -> str | None:
        """Receive a live report of a running trial; return why the trial is stopped, or None to continue.

        Called for each report if `capabilities.live`, in any order of trials. A live report may still be lost. The
        trial's outcome contains whether it was stopped; later decisions must depend only on outcomes.
        """
        return None

    def may_withdraw(self, trial: int) -> bool:
        """Return whether a trial has failed, and no decision since then depends on its failure."""
        return trial in self._failed

    def withdraw(self, trial: int) -> None:
        """Take back the outcome of a failed trial: the trial runs again, and will be observed again.

        Raises:
            ValueError: The outcome may not be withdrawn.
        """
        if not self.may_withdraw(trial):
            state = "is decided" if trial in self._failed else "has not failed"
            raise ValueError(f"only the outcome of a failed trial can be withdrawn; trial {trial} {state}")
        index = self._failed.pop(trial)
        self._finished[index] -= 1
        self._running[trial] = index

    def prune(self, trial: int) -> Sequence[Decision]:
        """Treat a trial that a user ended as failed; return the decisions that follow for others.

        The trial is running, or waits between two segments. Schedulers in which trials wait override this method: a
        pruned trial must not run again, and no rung may wait for it. `withdraw` is never called for a pruned trial.

        Raises:
            ValueError: The trial neither runs nor waits, or this scheduler can't prune waiting trials.
        """
        return self.observe(Outcome(trial, 0, None))

    def exhausted(self) -> Sequence[Decision]:
        """Take back the last `NewTrial`, for which the searcher had no params, and create no more trials.

        Raises:
            ValueError: The newest trial isn't in its first segment, so nothing can be taken back.
        """
        newest = self._numbered - 1
        index = self._running.get(newest)
        if index is None or index[1] > 0:
            raise ValueError("`exhausted` must follow a `NewTrial`; the newest trial is not in its first segment")
        del self._running[newest]
        self._started[index] -= 1
        bracket, _ = index
        if not any(self._started[bracket, rung] for rung in self._plans.get(bracket, ())):
            self._plans.pop(bracket, None)
        self._numbered -= 1
        self._exhausted = True
        return ()

    def rungs(self) -> Sequence[RungView]:
        """Return the rungs of the brackets that have trials."""
        return [
            RungView(bracket, rung, until, None, self._started[bracket, rung], self._finished[bracket, rung])
            for bracket, rungs in sorted(self._plans.items())
            for rung, until in sorted(rungs.items())
        ]

    def plan(self, bracket: int) -> Rungs:
        """Return (until, size) of a bracket's rungs, as in `rungs`; empty if the bracket hasn't started.

        Called after every event of the bracket's trials, so the cost should not grow with the number of brackets.
        """
        return tuple((until, None) for _, until in sorted(self._plans.get(bracket, {}).items()))

    def total(self) -> tuple[int, int] | None:
        """Return (trials, iterations when each promotion resumes) of the whole sweep; None if there is no bound."""
        return None

    def _trials(self) -> int | None:
        """Return the total number of trials at the end of the sweep; None if it has no bound."""
        return self._numbered if self._exhausted else self._run_cap

    def _to_create(self) -> int:
        """Return the number of trials that may still be created; 1 if it has no bound."""
        if self._exhausted:
            return 0
        return 1 if self._run_cap is None else self._run_cap - self._numbered


def ordinal(number: int) -> str:
    """Return 1st, 2nd, 3rd, 4th, ..., 11th, ..., 21st."""
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def ranked(outcome: Outcome, rung: int, rank: int, size: int, promoted: int) -> str:
    """Return a trial's rank in its rung: `"rung 2: 7th of 9, top 3 go on"`."""
    nan = " (NaN)" if outcome.value is not None and not is_valid(outcome.value) else ""
    verb = "goes" if promoted == 1 else "go"
    return f"rung {rung}: {ordinal(rank)} of {size}{nan}, top {promoted} {verb} on"


def passed_over(rung: int, rank: int, size: int, top: int, nan: bool) -> str:
    """Return the final rank of a trial that was never promoted: `"rung 2: 7th of 9 at the end, top 3 go on"`."""
    if nan:
        return f"rung {rung}: NaN, which never goes on"
    verb = "goes" if top == 1 else "go"
    return f"rung {rung}: {ordinal(rank)} of {size} at the end, top {top} {verb} on"


def unopened(rung: int, rank: int, size: int, nan: bool) -> str:
    """Return a trial's final rank in the highest open rung: `"rung 2: 7th of 9 at the end, no rung was opened ..."`."""
    shown = " (NaN)" if nan else ""
    return f"rung {rung}: {ordinal(rank)} of {size}{shown} at the end, no rung was opened after it"


def ran(outcome: Outcome, until: int | None) -> str:
    """Return how far a complete trial ran: `"ran all 27 iterations"`."""
    if until is None:
        return f"ended by itself after {_counted(outcome.iteration, outcome.resource)}"
    if outcome.iteration < until:
        return f"ended by itself after {outcome.iteration} of {_counted(until, outcome.resource)}"
    if outcome.resource is not None:
        return f"ran to {_counted(outcome.iteration, outcome.resource)}"
    return f"ran all {_counted(until, None)}" if until > 1 else "ran its 1 iteration"


def _counted(count: int, resource: str | None) -> str:
    if resource is not None:
        return f"{count} {resource}"
    return "1 iteration" if count == 1 else f"{count} iterations"
