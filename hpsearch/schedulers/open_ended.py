"""What schedulers share that decide on each trial by itself, and create trials for as long as they may."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpsearch.decision import Decision, Rungs
from hpsearch.errors import SweepError
from hpsearch.schedulers.base import Answer, Done, NewTrial, Outcome, Run, RungView, Scheduler, Wait

__all__ = ["OpenEnded"]


class OpenEnded(Scheduler):
    """Keeps the books of trials, rungs and failures; who goes on is for the derived class to say.

    Rungs hold as many trials as come, so no size of one is known. Failed trials take no part in any decision, so each
    may be taken back at any time.

    Args:
        ends: Of each bracket, the iterations that its rungs run until; None: until the trainable returns.
        run_cap: How many trials may be created in all; None: as many as the searcher has params for.
    """

    def __init__(self, ends: Sequence[Sequence[int | None]], run_cap: int | None) -> None:
        if run_cap is not None and run_cap < 1:
            raise SweepError(f"`run_cap` must be at least 1, got {run_cap}")
        self._ends = ends
        self._run_cap = run_cap
        self._numbered = 0
        self._exhausted = False
        self._running: dict[int, tuple[int, int]] = {}
        """Trials to the (bracket, rung) that they run in."""
        self._failed: dict[int, tuple[int, int]] = {}
        self._started: Counter[tuple[int, int]] = Counter()
        self._finished: Counter[tuple[int, int]] = Counter()
        self._plans: Sequence[Rungs] = [tuple((until, None) for until in bracket) for bracket in ends]

    @abstractmethod
    def _begin(self, answer: NewTrial | Run) -> None:
        """Count the first of `upcoming` as started, in the books of the derived class."""

    def next(self) -> Answer:
        """Say what to start now; the answer counts as started."""
        answer = next(self.upcoming(), None)
        if answer is None:
            return Wait() if self._running else Done()
        self._begin(answer)
        if isinstance(answer, NewTrial):
            trial = answer.number
            self._numbered += 1
        else:
            trial = answer.trial
        self._running[trial] = answer.bracket, answer.rung
        self._started[answer.bracket, answer.rung] += 1
        return answer

    @property
    def busy(self) -> bool:
        """Whether a trial is running."""
        return bool(self._running)

    def may_withdraw(self, trial: int) -> bool:
        """Say whether a trial failed."""
        return trial in self._failed

    def withdraw(self, trial: int) -> None:
        """Take back the outcome of a trial that failed.

        Raises:
            ValueError: It didn't fail.
        """
        if trial not in self._failed:
            raise ValueError(f"only the outcome of a failed trial can be withdrawn; trial {trial} has not failed")
        place = self._failed.pop(trial)
        self._finished[place] -= 1
        self._running[trial] = place

    def exhausted(self) -> Sequence[Decision]:
        """Take the last `NewTrial` back and ask for no more.

        Raises:
            ValueError: The newest trial isn't in its first segment, so that there is no answer to take back.
        """
        newest = self._numbered - 1
        place = self._running.get(newest)
        if place is None or place[1] > 0:
            raise ValueError("`exhausted` must follow a `NewTrial`; the newest trial is not in its first segment")
        del self._running[newest]
        self._started[place] -= 1
        self._numbered -= 1
        self._exhausted = True
        return ()

    def extend(self, run_cap: int | None, settings: Mapping[str, Any]) -> None:
        """Raise `run_cap` from here on. Undoes `exhausted`.

        Raises:
            ValueError: The bound would become lower, or there are settings: none could be raised.
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

    def rungs(self) -> Sequence[RungView]:
        """Give the rungs of the brackets that have trials."""
        return [
            RungView(bracket, rung, until, None, self._started[bracket, rung], self._finished[bracket, rung])
            for bracket, ends in enumerate(self._ends)
            if self._started[bracket, 0]
            for rung, until in enumerate(ends)
        ]

    def plan(self, bracket: int) -> Rungs:
        """Give (until, no size) of a bracket's rungs; none where it has no trials."""
        return self._plans[bracket] if self._started[bracket, 0] else ()

    def _take(self, outcome: Outcome) -> tuple[int, int]:
        """Count a trial's segment as ended; give the bracket and the rung that it ran in.

        Raises:
            ValueError: The trial isn't running.
        """
        place = self._running.pop(outcome.trial, None)
        if place is None:
            raise ValueError(f"an outcome must be of a running trial; trial {outcome.trial} is not running")
        self._finished[place] += 1
        if outcome.value is None:
            self._failed[outcome.trial] = place
        return place

    def _numbers(self) -> Iterable[int]:
        """Give the numbers of the trials that may still be created."""
        if self._exhausted:
            return ()
        return itertools.count(self._numbered) if self._run_cap is None else range(self._numbered, self._run_cap)

    def _to_create(self) -> int:
        """Count the trials that may still be created; 1 where they have no bound."""
        if self._exhausted:
            return 0
        return 1 if self._run_cap is None else self._run_cap - self._numbered
