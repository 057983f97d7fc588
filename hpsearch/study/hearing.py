"""In which order, and how much of it, a searcher hears of what happened before it is asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from hpsearch.searchers import Observation
from hpsearch.searchers.points import ADDED, RETRY
from hpsearch.study.trial_record import DECIDED
from hpsearch.study.trial_records import TrialRecords
from hpsearch.trial import StateAt, Trial, TrialState

__all__ = ["AsItComes", "Hearing", "Lagging", "Told"]


@dataclass(frozen=True, slots=True)
class Told:
    """A call by which a searcher is told."""

    method: str
    arguments: tuple[Any, ...]
    state: StateAt
    """To which it brought a trial."""


class Hearing(ABC):
    """Takes what happened, and gives what a searcher is told of it before a suggestion."""

    @abstractmethod
    def hear(self, told: Told) -> None:
        """Take what happened."""

    @abstractmethod
    def settled(self, number: int, bracket: int) -> bool:
        """Say whether all has happened that suggestion `number`, for a trial of this bracket, is to know."""

    @abstractmethod
    def before(self, number: int, bracket: int) -> list[Told]:
        """Give what the searcher is told before suggestion `number`, and wasn't told yet."""

    @abstractmethod
    def unheard(self) -> Iterator[StateAt]:
        """Give the states to which trials were brought, and of which it wasn't told."""


class AsItComes(Hearing):
    """All that has happened, in its order."""

    def __init__(self) -> None:
        self._unheard: deque[Told] = deque()

    def hear(self, told: Told) -> None:
        """Take what happened."""
        self._unheard.append(told)

    def settled(self, number: int, bracket: int) -> bool:
        """A suggestion waits for nothing."""
        return True

    def before(self, number: int, bracket: int) -> list[Told]:
        """Give all that is new."""
        new = list(self._unheard)
        self._unheard.clear()
        return new

    def unheard(self) -> Iterator[StateAt]:
        """Give the states of what is new."""
        return (told.state for told in self._unheard)


class Lagging(Hearing):
    """What the number of a suggestion alone says, in the order of the trials.

    Suggestion n knows all trials before it. It knows the results of the first rung of trials up to n - lag; and those
    of all rungs of the brackets that are two or more before its own, which is why it waits for these.

    Args:
        lag: At least 1.
        records: Of the sweep, up to date.
    """

    def __init__(self, lag: int, records: TrialRecords) -> None:
        self._lag = lag
        self._records = records
        self._trials: list[Trial] = []
        self._suggested: list[int] = []
        """Of each suggestion, the trial that took it: those that are run once more as other trials, and those
        that a user added, took none."""
        self._segments: list[list[Observation]] = []
        """Of each trial, what came of its segments that have ended."""
        self._reported: list[list[Observation]] = []
        """Of each trial, what came of the segment that hasn't."""
        self._heard: list[int] = []
        """Of each trial, how many segments the searcher was told of."""
        self._introduced = 0
        """Trials that it was told of."""
        self._first = 0
        """Those of which it was told the first segment."""
        self._anew: dict[int, Told] = {}
        """Trials that run again of which it was told that they failed, to the call that takes that back."""
        self._whole = 0
        """Those of which it was told all: the trials of a bracket have numbers next to each other."""

    def hear(self, told: Told) -> None:
        """Take what happened; nothing is passed on yet."""
        match told.method, told.arguments:
            case "started", (trial,):
                self._trials.append(trial)
                if trial.origin not in (RETRY, ADDED):
                    self._suggested.append(trial.number)
                self._segments.append([])
                self._reported.append([])
                self._heard.append(0)
            case "observe", (observation,):
                self._observe(observation)
            case "reverted" | "dropped", (trial, *rest):
                self._forget(trial.number, rest[0] if rest else 0)
                self._take_back(told, trial.number)

    def settled(self, number: int, bracket: int) -> bool:
        """Say whether the trials and brackets have ended that the suggestion is to know."""
        if len(self._suggested) < number:
            return False
        first = range(self._first, self._until(number - self._lag))
        ended = all(self._segments[trial] for trial in (*first, *self._anew))
        return ended and all(map(self._is_over, self._former(number, bracket)))

    def before(self, number: int, bracket: int) -> list[Told]:
        """Give what is new of what the suggestion is to know."""
        introduced = self._until(number - 1)
        out = [
            Told("started", (trial,), StateAt(trial.number, trial.start))
            for trial in self._trials[self._introduced : introduced]
        ]
        self._introduced = introduced
        for trial, told in sorted(self._anew.items()):
            out += [told, *self._tell(trial, len(self._segments[trial]) if trial < self._whole else 1)]
        self._anew.clear()
        for trial in range(self._first, self._until(number - self._lag)):
            out += self._tell(trial, 1)
            self._first = trial + 1
        for trial in list(self._former(number, bracket)):
            out += self._tell(trial, len(self._segments[trial]))
            self._whole = trial + 1
        return out

    def _until(self, number: int) -> int:
        """Count the trials up to the one that took a suggestion."""
        return self._suggested[number] + 1 if number >= 0 else 0

    def _tell(self, trial: int, most: int) -> list[Told]:
        """Give what came of a trial's first segments, but for those that were told."""
        new = self._segments[trial][self._heard[trial] : most]
        self._heard[trial] += len(new)
        return [Told("observe", (observation,), StateAt(trial, observation.iteration)) for observation in new]

    def _former(self, number: int, bracket: int) -> Iterator[int]:
        """Give the trials of brackets two or more before this one, but for those of which all was told."""
        for trial in range(self._whole, self._until(number - 1)):
            if self._records.of(trial).bracket > bracket - 2:
                return
            yield trial

    def unheard(self) -> Iterator[StateAt]:
        """No searcher that forks is asked with a lag."""
        return iter(())

    def _observe(self, observation: Observation) -> None:
        trial = observation.trial.number
        self._reported[trial].append(observation)
        if not observation.ended:
            return
        known = self._segments[trial][-1].iteration if self._segments[trial] else 0
        reports = [report for part in self._reported[trial] for report in part.reports if report.iteration > known]
        # Which trials were decided by it hangs on who came last.
        self._segments[trial].append(replace(observation, reports=tuple(reports), decisions=()))
        self._reported[trial] = []

    def _forget(self, trial: int, iteration: int) -> None:
        """Take what a trial reported after an iteration for never heard, but for the segments that have ended.

        They were decided on. Which of them the searcher was told by then hangs on the order of arrival.
        """
        self._reported[trial] = [part for part in self._reported[trial] if part.iteration <= iteration]

    def _take_back(self, told: Told, trial: int) -> None:
        """Take back that a trial failed, where it runs again."""
        segments = self._segments[trial]
        if segments and segments[-1].failure is not None:
            segments.pop()
            if self._heard[trial] > len(segments):
                self._heard[trial] = len(segments)
                self._anew[trial] = told

    def _is_over(self, trial: int) -> bool:
        state = self._records.of(trial).state
        return state in DECIDED or state is TrialState.FAILED
