"""What a searcher that models results has been told, and which of it is comparable."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hpsearch.objective import Objective, is_valid, values_of
from hpsearch.searchers.base import Observation, Past
from hpsearch.trial import Params, Score, Trial

__all__ = ["Curve", "Evidence", "History"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of one trial, beside others that got as far."""

    trial: int
    """Its number; below 0: it is of another search."""
    params: Params
    value: Score | None
    """Never NaN: a trial that failed or has no valid value counts as the worst that there is. None: it is under way."""


@dataclass(frozen=True, slots=True)
class Curve:
    """What is known of one trial, at each length that it has got to."""

    trial: int
    """Its number; below 0: it is of another search."""
    params: Params
    values: Mapping[int, float]
    """Iterations to the trial's value by then, which rise: where its segments ended, or one of another search passed
    such an end, and the newest. Finite: a value that isn't valid is the worst that there is, and so is that of a failed
    trial, at the longest length. Empty: it is under way, and said nothing yet."""


@dataclass(slots=True)
class _Known:
    params: Params
    values: dict[int, Score | None] = field(default_factory=dict)
    """What each iteration reported of the metric."""
    ends: dict[float, int] = field(default_factory=dict)
    """Where its segments ended: the iterations that they were given, to the last one that it ran."""
    failed: bool = False


class History:
    """The trials of a sweep, as a searcher is told of them.

    Under rungs, values of unlike lengths of training can't be compared, and only few trials get far. So a model is
    fitted at one length: the longest that a trial has reached. Falkner et al., "BOHB", ICML 2018, section 4, wait until
    two more have got there than the model has degrees of freedom, which found less on recorded tables
    (docs/benchmarks.md). A trial that ended by itself before the end of its segment counts as one that got there.

    Args:
        objective: Says what of a report counts, and which of a trial's reports gives its value.
        longest: False: at the shortest length instead, which all trials reach, whatever is decided on them: those that
            got further are no fair sample of those that were drawn.
    """

    def __init__(self, objective: Objective, longest: bool = True) -> None:
        self._objective = objective
        self._one_length = max if longest else min
        self._trials: dict[int, _Known] = {}

    def recall(self, past: Sequence[Past]) -> None:
        """Take the trials of other searches, before all others."""
        for number, known in enumerate(past, -len(past)):
            ends = {math.inf if known.until is None else known.until: max(known.values)}
            self._trials[number] = _Known(known.params, dict(known.values), ends)

    def started(self, trial: Trial) -> None:
        """Take a new trial."""
        self._trials[trial.number] = _Known(trial.params)

    def observe(self, observation: Observation) -> None:
        """Take what a trial gave."""
        known = self._trials[observation.trial.number]
        for report in observation.reports:
            known.values[report.iteration] = self._objective.reported(report.metrics)
        known.failed = observation.failure is not None
        if observation.ended and not known.failed:
            known.ends[math.inf if observation.until is None else observation.until] = observation.iteration

    def reverted(self, trial: Trial, iteration: int) -> None:
        """Forget what a trial reported after an iteration, and that it failed."""
        known = self._trials[trial.number]
        known.failed = False
        known.values = {at: value for at, value in known.values.items() if at <= iteration}
        known.ends = {until: last for until, last in known.ends.items() if last <= iteration}

    def dropped(self, trial: Trial) -> None:
        """Forget all that a trial reported."""
        self._trials[trial.number] = _Known(trial.params)

    def newest(self, trial: int) -> int:
        """Give the last iteration of a trial that reported anything; 0 where none did."""
        return max(self._trials[trial].values, default=0)

    def evidence(self) -> list[Evidence]:
        """Give the trials that can be compared, and those that are under way, by number; none where no value is valid.

        Those that ended before that length are left out: they are neither.
        """
        length = self._one_length((until for known in self._trials.values() for until in known.ends), default=None)
        if length is None:
            return []
        found = [(trial, known, self._value(known, length)) for trial, known in sorted(self._trials.items())]
        valid = [value for _, _, value in found if is_valid(value)]
        if not valid:
            return []
        return list(self._compared(found, length, self._objective.worst(valid)))

    def curves(self) -> list[Curve]:
        """Give what is known of each trial at each length, by number; none where no value is finite. Of one goal.

        A segment that the trial ended by itself counts as run to its end. A trial of another search, whose segments are
        not known, has a value wherever a segment of this one ended on its way.
        """
        own = (known for number, known in self._trials.items() if number >= 0)
        rungs = {int(until) for known in own for until in known.ends if until < math.inf}
        ends = {
            number: self._lengths(known) if number >= 0 else self._passed(known, rungs)
            for number, known in sorted(self._trials.items())
        }
        found = {
            number: {length: _number(self._by_then(self._trials[number], last)) for length, last in lengths.items()}
            for number, lengths in ends.items()
        }
        finite = [
            value
            for values in found.values()
            for value in values.values()
            if value is not None and math.isfinite(value)
        ]
        if not finite:
            return []
        low, high = min(finite), max(finite)
        worst = max(low, high, key=lambda value: self._objective.sort_key(value))
        longest = max(length for values in found.values() for length in values)

        def settled(value: float | None) -> float:
            return worst if value is None or math.isnan(value) else min(max(value, low), high)

        return [
            Curve(
                number,
                self._trials[number].params,
                {length: settled(value) for length, value in values.items()}
                | ({longest: worst} if self._trials[number].failed else {}),
            )
            for number, values in found.items()
        ]

    def _lengths(self, known: _Known) -> dict[int, int]:
        """Give lengths of training, which rise, to the iterations by which their values are known."""
        ends = {last if until == math.inf else int(until): last for until, last in known.ends.items()}
        newest = max(known.values, default=0)
        if newest and newest > max(ends.values(), default=0):
            ends[newest] = newest
        return dict(sorted(ends.items()))

    def _passed(self, known: _Known, rungs: Collection[int]) -> dict[int, int]:
        """Give the lengths of a trial of another search likewise, those on its way among them."""
        ends = self._lengths(known)
        first, last = min(known.values), max(ends)
        return dict(sorted(({rung: rung for rung in rungs if first <= rung < last} | ends).items()))

    def _compared(
        self, found: list[tuple[int, _Known, Score | None]], length: float, worst: Score
    ) -> Iterator[Evidence]:
        for trial, known, value in found:
            if trial < 0 and min(known.values) > length:
                continue  # nobody wrote down what it had by then
            if known.failed or any(until >= length for until in known.ends):
                yield Evidence(trial, known.params, value if is_valid(value) else worst)
            elif not known.ends:
                yield Evidence(trial, known.params, None)

    def _value(self, known: _Known, length: float) -> Score | None:
        """Give a trial's value at a length, as it had been by then; None where it failed, or hasn't got there."""
        if known.failed or not any(until >= length for until in known.ends):
            return None
        return self._by_then(known, length)

    def _by_then(self, known: _Known, length: float) -> Score | None:
        """Give a trial's value as it had been at a length; None where it had none."""
        value = None
        for iteration in sorted(known.values):
            if iteration <= length and self._objective.replaces(known.values[iteration], value):
                value = known.values[iteration]
        return value


def _number(score: Score | None) -> float | None:
    """Give the value of the only goal."""
    return None if score is None else values_of(score)[0]
