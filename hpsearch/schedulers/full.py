"""No early termination: each trial runs to its end."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpsearch.decision import Decision
from hpsearch.errors import SweepError
from hpsearch.schedulers.base import Answer, Done, NewTrial, Outcome, Run, RungView, Scheduler, Wait
from hpsearch.schedulers.reasons import ran

__all__ = ["FullLength"]


class FullLength(Scheduler):
    """Run every trial until the end of iteration `max_iter`, and none any further.

    Args:
        max_iter: Where each trial ends; None: where its trainable returns.
        run_cap: How many trials; None: as many as the searcher has params for.
    """

    def __init__(self, max_iter: int | None, run_cap: int | None = None) -> None:
        if max_iter is not None and max_iter < 1:
            raise SweepError(f"`max_iter` must be at least 1, got {max_iter}")
        if run_cap is not None and run_cap < 1:
            raise SweepError(f"`run_cap` must be at least 1, got {run_cap}")
        self._max_iter = max_iter
        self._run_cap = run_cap
        self._numbered = 0
        self._running: set[int] = set()
        self._failed: set[int] = set()
        self._exhausted = False

    def next(self) -> Answer:
        """Say what to start now; the answer counts as started."""
        if self.ready():
            trial = self._numbered
            self._numbered += 1
            self._running.add(trial)
            return NewTrial(trial, self._max_iter)
        return Wait() if self._running else Done()

    def upcoming(self) -> Iterator[NewTrial | Run]:
        """Give the trials that are still to be created."""
        if self._exhausted:
            return
        numbers = itertools.count(self._numbered) if self._run_cap is None else range(self._numbered, self._run_cap)
        for number in numbers:
            yield NewTrial(number, self._max_iter)

    @property
    def busy(self) -> bool:
        """Whether a trial is running."""
        return bool(self._running)

    def ready(self) -> int:
        """Count the trials that are still to be created; 1 where they have no bound."""
        if self._exhausted:
            return 0
        return 1 if self._run_cap is None else self._run_cap - self._numbered

    def observe(self, outcome: Outcome) -> Sequence[Decision]:
        """Take a trial's outcome: it is complete, or it failed and there is nothing to decide.

        Raises:
            ValueError: The trial isn't running.
        """
        if outcome.trial not in self._running:
            raise ValueError(f"an outcome must be of a running trial; trial {outcome.trial} is not running")
        self._running.remove(outcome.trial)
        if outcome.value is None:
            self._failed.add(outcome.trial)
            return ()
        return (Decision(outcome.trial, "complete", ran(outcome, self._max_iter)),)

    def may_withdraw(self, trial: int) -> bool:
        """Say whether a trial failed: each trial is decided on by itself."""
        return trial in self._failed

    def withdraw(self, trial: int) -> None:
        """Take back the outcome of a trial that failed.

        Raises:
            ValueError: It didn't fail.
        """
        if trial not in self._failed:
            raise ValueError(f"only the outcome of a failed trial can be withdrawn; trial {trial} has not failed")
        self._failed.remove(trial)
        self._running.add(trial)

    def exhausted(self) -> Sequence[Decision]:
        """Take the last `NewTrial` back and ask for no more.

        Raises:
            ValueError: The newest trial isn't running, so that there is no answer to take back.
        """
        newest = self._numbered - 1
        if newest not in self._running:
            raise ValueError("`exhausted` must follow a `NewTrial`; the newest trial is not running")
        self._running.remove(newest)
        self._numbered -= 1
        self._exhausted = True
        return ()

    def extend(self, run_cap: int | None, settings: Mapping[str, Any]) -> None:
        """Raise `run_cap` from here on. Undoes `exhausted`.

        Raises:
            ValueError: The bound would become lower, or there are settings: it has none that could be raised.
        """
        if settings:
            raise ValueError(f"only `run_cap` can be raised where nothing terminates early, got {', '.join(settings)}")
        if run_cap is not None:
            if self._run_cap is None:
                raise ValueError(f"bounds can only be raised: `run_cap` has no bound so far, got {run_cap}")
            if run_cap < self._run_cap:
                raise ValueError(f"bounds can only be raised: `run_cap` is {self._run_cap}, got {run_cap}")
            self._run_cap = run_cap
        self._exhausted = False

    def rungs(self) -> Sequence[RungView]:
        """Show all trials as the one rung of one bracket, once there are any."""
        if self._numbered == 0:
            return ()
        finished = self._numbered - len(self._running)
        return (RungView(0, 0, self._max_iter, self._trials(), self._numbered, finished),)

    def total(self) -> tuple[int, int] | None:
        """Count (trials, iterations) of the whole sweep, or None without `max_iter` or a bound on trials."""
        trials = self._trials()
        if trials is None or self._max_iter is None:
            return None
        return trials, trials * self._max_iter

    def _trials(self) -> int | None:
        return self._numbered if self._exhausted else self._run_cap
