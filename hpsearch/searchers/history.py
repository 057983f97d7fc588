"""The observations of a searcher that learns, and the values that can be compared."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hpsearch.objective import Objective, is_valid
from hpsearch.searchers.base import Observation, Past
from hpsearch.trial import Failure, Params, Score, Trial


@dataclass(frozen=True, slots=True)
class Evidence:
    """The value of one trial at the length of training at which trials are compared."""

    trial: int
    """Trial number; negative for a trial of another search."""
    params: Params
    value: Score | None
    """Never NaN: a trial that failed or has no valid value gets the worst value of all. None: the trial is running."""


@dataclass(slots=True)
class _TrialHistory:
    params: Params
    values: dict[int, Score | None] = field(default_factory=dict)
    """Iteration to reported score."""
    ends: dict[float, int] = field(default_factory=dict)
    """Planned ends of the trial's finished segments, in iterations, to the last iteration that it ran by then."""
    failure: Failure | None = None


class History:
    """The trials of a sweep as a searcher observes them.

    Under rungs, values after different lengths of training can't be compared, and only few trials run long. So a model
    is fitted at one length: the longest that a trial has reached. Falkner et al., "BOHB", ICML 2018, section 4, wait
    until enough trials have reached that length: two more than the model has degrees of freedom. That was worse on
    recorded tables (docs/benchmarks.md). If a trainable returns early, its trial counts as having reached the end of
    its segment.

    Args:
        objective: Defines the score of a report, and which report's score a trial gets.
        longest: False: compare at the shortest length instead, which all trials reach, because the trials that run
            longer are a biased sample.
    """

    def __init__(self, objective: Objective, longest: bool = True) -> None:
        self._objective = objective
        self._one_length = max if longest else min
        self._trials: dict[int, _TrialHistory] = {}

    def recall(self, past: Sequence[Past]) -> None:
        """Add the trials of other searches, numbered before the trials of this search."""
        for number, entry in enumerate(past, -len(past)):
            ends = {math.inf if entry.until is None else entry.until: max(entry.values)}
            self._trials[number] = _TrialHistory(entry.params, dict(entry.values), ends)

    def started(self, trial: Trial) -> None:
        """Add a new trial."""
        self._trials[trial.number] = _TrialHistory(trial.params)

    def observe(self, observation: Observation) -> None:
        """Add a trial's reports."""
        record = self._trials[observation.trial.number]
        for report in observation.reports:
            record.values[report.iteration] = self._objective.reported(report.metrics)
        record.failure = observation.failure
        if observation.ended and record.failure is None:
            record.ends[math.inf if observation.until is None else observation.until] = observation.iteration

    def reverted(self, trial: Trial, iteration: int) -> None:
        """Forget a trial's reports after an iteration, and its failure."""
        record = self._trials[trial.number]
        record.failure = None
        record.values = {at: value for at, value in record.values.items() if at <= iteration}
        record.ends = {until: last for until, last in record.ends.items() if last <= iteration}

    def dropped(self, trial: Trial) -> None:
        """Forget a trial's reports."""
        self._trials[trial.number] = _TrialHistory(trial.params)

    def newest(self, trial: int) -> int:
        """Return a trial's last iteration with a report; 0 if there is none."""
        return max(self._trials[trial].values, default=0)

    def evidence(self) -> list[Evidence]:
        """Return the trials that can be compared and the running ones, sorted by number; empty if no value is valid.

        Trials that ended before the compared length are left out.
        """
        length = self._one_length((until for record in self._trials.values() for until in record.ends), default=None)
        if length is None:
            return []
        trials = [(trial, record, self._value(record, length)) for trial, record in sorted(self._trials.items())]
        valid = [value for _, _, value in trials if is_valid(value)]
        if not valid:
            return []
        return list(self._compared(trials, length, self._objective.worst(valid)))

    def trained_and_failed(self) -> tuple[list[Params], list[Params]]:
        """Return the configurations that could be trained, and those that memory, time or numbers didn't allow.

        A trial that ends with NaN couldn't be trained. Trials that failed for another reason are in neither list.
        """
        trained: list[Params] = []
        failed: list[Params] = []
        for _, record in sorted(self._trials.items()):
            if record.failure is not None:
                if record.failure.is_of_capacity:
                    failed.append(record.params)
            elif record.ends and record.values:
                score = next(reversed(record.values.values()))
                if score is not None:
                    (trained if is_valid(score) else failed).append(record.params)
        return trained, failed

    def _compared(
        self, trials: list[tuple[int, _TrialHistory, Score | None]], length: float, worst: Score
    ) -> Iterator[Evidence]:
        for trial, record, value in trials:
            if trial < 0 and min(record.values) > length:
                continue  # the trial's value at that length isn't known
            if record.failure is not None or any(until >= length for until in record.ends):
                yield Evidence(trial, record.params, value if is_valid(value) else worst)
            elif not record.ends:
                yield Evidence(trial, record.params, None)

    def _value(self, record: _TrialHistory, length: float) -> Score | None:
        """Return a trial's value at a length; None if it failed, hasn't reached the length, or has no value there."""
        if record.failure is not None or not any(until >= length for until in record.ends):
            return None
        value = None
        for iteration in sorted(record.values):
            if iteration <= length and self._objective.replaces(record.values[iteration], value):
                value = record.values[iteration]
        return value
