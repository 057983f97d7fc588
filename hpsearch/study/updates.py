"""What a searcher is to observe before a suggestion: all results so far, or with a lag those of earlier trials."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from hpsearch.searchers import Observation
from hpsearch.searchers.first_trials import ADDED, RETRY
from hpsearch.study.trial_record import DECIDED
from hpsearch.study.trial_records import TrialRecords
from hpsearch.trial import StateAt, Trial, TrialState


@dataclass(frozen=True, slots=True)
class Update:
    """A call that informs a searcher of what happened."""

    method: str
    arguments: tuple[Any, ...]
    state: StateAt
    """The state that the trial reached."""


class Updates:
    """Pending updates for a searcher. Before each suggestion, it receives all of them in order."""

    def __init__(self) -> None:
        self._pending: deque[Update] = deque()

    def add(self, update: Update) -> None:
        """Add an update."""
        self._pending.append(update)

    def settled(self, number: int, bracket: int) -> bool:
        """Return whether all updates for suggestion `number` are there; `bracket` is that of its trial."""
        return True

    def before(self, number: int, bracket: int) -> list[Update]:
        """Return the new updates that the searcher must receive before suggestion `number`."""
        new = list(self._pending)
        self._pending.clear()
        return new

    def pending(self) -> Iterator[StateAt]:
        """Return the trial states that the searcher hasn't received yet."""
        return (update.state for update in self._pending)


class LaggedUpdates(Updates):
    """Updates that depend only on the number of a suggestion, in the order of the trials.

    Before suggestion n, the searcher receives the parameters of all earlier trials, the results of the first rung of
    trials up to n - lag, and the results of all rungs of the brackets that are two or more before its own. The
    suggestion waits for these results.

    Args:
        lag: At least 1.
        records: The sweep's records, which the caller keeps up to date.
    """

    def __init__(self, lag: int, records: TrialRecords) -> None:
        self._lag = lag
        self._records = records
        self._trials: list[Trial] = []
        self._suggested: list[int] = []
        """The trial of each suggestion. Retries as new trials and trials that a user added use no suggestion."""
        self._segments: list[list[Observation]] = []
        """Results of each trial's ended segments."""
        self._reported: list[list[Observation]] = []
        """Results of each trial's current segment so far."""
        self._observed_counts: list[int] = []
        """Number of each trial's segments that the searcher has received."""
        self._introduced = 0
        """Number of trials that the searcher has received."""
        self._first = 0
        """Number of trials whose first segment the searcher has received."""
        self._anew: dict[int, Update] = {}
        """Retried trials whose failure the searcher has received, to the update that revokes it."""
        self._completed = 0
        """Number of trials whose results the searcher has all received. A bracket's trials have consecutive numbers."""

    def add(self, update: Update) -> None:
        """Add an update. The searcher receives it later."""
        match update.method, update.arguments:
            case "started", (trial,):
                self._trials.append(trial)
                if trial.origin not in (RETRY, ADDED):
                    self._suggested.append(trial.number)
                self._segments.append([])
                self._reported.append([])
                self._observed_counts.append(0)
            case "observe", (observation,):
                self._observe(observation)
            case "reverted" | "dropped", (trial, *rest):
                self._forget(trial.number, rest[0] if rest else 0)
                self._take_back(update, trial.number)

    def settled(self, number: int, bracket: int) -> bool:
        """Return whether the trials and brackets whose results the suggestion needs have ended."""
        if len(self._suggested) < number:
            return False
        first = range(self._first, self._until(number - self._lag))
        ended = all(self._segments[trial] for trial in (*first, *self._anew))
        return ended and all(map(self._is_over, self._former(number, bracket)))

    def before(self, number: int, bracket: int) -> list[Update]:
        """Return the updates for the suggestion that the searcher hasn't received."""
        introduced = self._until(number - 1)
        out = [
            Update("started", (trial,), StateAt(trial.number, trial.start))
            for trial in self._trials[self._introduced : introduced]
        ]
        self._introduced = introduced
        for trial, update in sorted(self._anew.items()):
            out += [update, *self._new_results(trial, len(self._segments[trial]) if trial < self._completed else 1)]
        self._anew.clear()
        for trial in range(self._first, self._until(number - self._lag)):
            out += self._new_results(trial, 1)
            self._first = trial + 1
        for trial in list(self._former(number, bracket)):
            out += self._new_results(trial, len(self._segments[trial]))
            self._completed = trial + 1
        return out

    def _until(self, number: int) -> int:
        """Return the number of trials up to and including the one that used suggestion `number`."""
        return self._suggested[number] + 1 if number >= 0 else 0

    def _new_results(self, trial: int, most: int) -> list[Update]:
        """Return the results of a trial's first `most` segments that the searcher hasn't received."""
        new = self._segments[trial][self._observed_counts[trial] : most]
        self._observed_counts[trial] += len(new)
        return [Update("observe", (observation,), StateAt(trial, observation.iteration)) for observation in new]

    def _former(self, number: int, bracket: int) -> Iterator[int]:
        """Yield the trials of brackets two or more before this one whose results the searcher hasn't all received."""
        for trial in range(self._completed, self._until(number - 1)):
            if self._records.of(trial).bracket > bracket - 2:
                return
            yield trial

    def pending(self) -> Iterator[StateAt]:
        """Return nothing: searchers that fork don't support a lag."""
        return iter(())

    def _observe(self, observation: Observation) -> None:
        trial = observation.trial.number
        self._reported[trial].append(observation)
        if not observation.ended:
            return
        last = self._segments[trial][-1].iteration if self._segments[trial] else 0
        reports = [report for earlier in self._reported[trial] for report in earlier.reports if report.iteration > last]
        # The decisions that followed from it depend on completion order.
        self._segments[trial].append(replace(observation, reports=tuple(reports), decisions=()))
        self._reported[trial] = []

    def _forget(self, trial: int, iteration: int) -> None:
        """Drop a trial's reports after an iteration, but keep its ended segments.

        Decisions were already based on these. Which of them the searcher has received depends on completion order.
        """
        self._reported[trial] = [entry for entry in self._reported[trial] if entry.iteration <= iteration]

    def _take_back(self, update: Update, trial: int) -> None:
        """Remove a trial's failure if the trial runs again."""
        segments = self._segments[trial]
        if segments and segments[-1].failure is not None:
            segments.pop()
            if self._observed_counts[trial] > len(segments):
                self._observed_counts[trial] = len(segments)
                self._anew[trial] = update

    def _is_over(self, trial: int) -> bool:
        state = self._records.of(trial).state
        return state in DECIDED or state is TrialState.FAILED
