"""The observations of a searcher that learns, and the values that can be compared."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hpsearch.objective import Objective, is_valid, values_of
from hpsearch.searchers.base import Observation, Past
from hpsearch.trial import Params, Score, Trial


@dataclass(frozen=True, slots=True)
class Evidence:
    """The value of one trial at the length of training at which trials are compared."""

    trial: int
    """Trial number; negative for a trial of another search."""
    params: Params
    value: Score | None
    """Never NaN: a trial that failed or has no valid value gets the worst value of all. None: the trial is running."""


@dataclass(frozen=True, slots=True)
class LearningCurve:
    """The values of one trial at the lengths of training that it has reached."""

    trial: int
    """Trial number; negative for a trial of another search."""
    params: Params
    values: Mapping[int, float]
    """Iterations, rising, to the trial's value by then: at the ends of its segments and at its newest report (for a
    trial of another search, where segments of this search end). Always finite: an invalid value is replaced by the
    worst of all, and a failed trial gets the worst value at the longest length. Empty: the trial is running and hasn't
    reported."""


@dataclass(slots=True)
class _TrialHistory:
    params: Params
    values: dict[int, Score | None] = field(default_factory=dict)
    """Iteration to reported score."""
    ends: dict[float, int] = field(default_factory=dict)
    """Planned ends of the trial's finished segments, in iterations, to the last iteration that it ran by then."""
    failed: bool = False


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
        record.failed = observation.failure is not None
        if observation.ended and not record.failed:
            record.ends[math.inf if observation.until is None else observation.until] = observation.iteration

    def reverted(self, trial: Trial, iteration: int) -> None:
        """Forget a trial's reports after an iteration, and its failure."""
        record = self._trials[trial.number]
        record.failed = False
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

    def curves(self) -> list[LearningCurve]:
        """Return the learning curve of each trial for a single goal, sorted by number; empty if no value is finite.

        If the trainable returned early, its segment counts as run to the end. The segments of a trial of another search
        aren't known, so it gets a value at each length at which a segment of this search ended.
        """
        records = (record for number, record in self._trials.items() if number >= 0)
        rungs = {int(until) for record in records for until in record.ends if until < math.inf}
        ends = {
            number: self._lengths(record) if number >= 0 else self._passed(record, rungs)
            for number, record in sorted(self._trials.items())
        }
        curves = {
            number: {length: _number(self._by_then(self._trials[number], last)) for length, last in lengths.items()}
            for number, lengths in ends.items()
        }
        finite = [
            value
            for values in curves.values()
            for value in values.values()
            if value is not None and math.isfinite(value)
        ]
        if not finite:
            return []
        low, high = min(finite), max(finite)
        worst = max(low, high, key=lambda value: self._objective.sort_key(value))
        longest = max(length for values in curves.values() for length in values)

        def settled(value: float | None) -> float:
            return worst if value is None or math.isnan(value) else min(max(value, low), high)

        return [
            LearningCurve(
                number,
                self._trials[number].params,
                {length: settled(value) for length, value in values.items()}
                | ({longest: worst} if self._trials[number].failed else {}),
            )
            for number, values in curves.items()
        ]

    def _lengths(self, record: _TrialHistory) -> dict[int, int]:
        """Return lengths of training, rising, each with the last iteration that counts for it."""
        ends = {last if until == math.inf else int(until): last for until, last in record.ends.items()}
        newest = max(record.values, default=0)
        if newest and newest > max(ends.values(), default=0):
            ends[newest] = newest
        return dict(sorted(ends.items()))

    def _passed(self, record: _TrialHistory, rungs: Collection[int]) -> dict[int, int]:
        """Return the lengths of a trial of another search, including the rungs of this search that it passed."""
        ends = self._lengths(record)
        first, last = min(record.values), max(ends)
        return dict(sorted(({rung: rung for rung in rungs if first <= rung < last} | ends).items()))

    def _compared(
        self, trials: list[tuple[int, _TrialHistory, Score | None]], length: float, worst: Score
    ) -> Iterator[Evidence]:
        for trial, record, value in trials:
            if trial < 0 and min(record.values) > length:
                continue  # the trial's value at that length isn't known
            if record.failed or any(until >= length for until in record.ends):
                yield Evidence(trial, record.params, value if is_valid(value) else worst)
            elif not record.ends:
                yield Evidence(trial, record.params, None)

    def _value(self, record: _TrialHistory, length: float) -> Score | None:
        """Return a trial's value at a length; None if the trial failed or hasn't reached the length."""
        if record.failed or not any(until >= length for until in record.ends):
            return None
        return self._by_then(record, length)

    def _by_then(self, record: _TrialHistory, length: float) -> Score | None:
        """Return a trial's value from its reports up to a length; None if it has no value there."""
        value = None
        for iteration in sorted(record.values):
            if iteration <= length and self._objective.replaces(record.values[iteration], value):
                value = record.values[iteration]
        return value


def _number(score: Score | None) -> float | None:
    """Return the value of the only goal; None without a score."""
    return None if score is None else values_of(score)[0]
