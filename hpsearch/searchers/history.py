"""What a searcher that models results has been told, and which of it is comparable."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from hpsearch.objective import Objective, is_valid
from hpsearch.searchers.base import Observation
from hpsearch.trial import Params, Trial

__all__ = ["Evidence", "History"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of one trial, beside others that got as far."""

    trial: int
    params: Params
    value: float | None
    """Never NaN: a trial that failed or has no valid value counts as the worst that there is. None: it is under way."""


@dataclass(slots=True)
class _Known:
    params: Params
    values: dict[int, float | None] = field(default_factory=dict)
    """What each iteration reported of the metric."""
    ends: dict[float, int] = field(default_factory=dict)
    """Where its segments ended: the iterations that they were given, to the last one that it ran."""
    failed: bool = False


class History:
    """The trials of a sweep, as a searcher is told of them.

    Under rungs, values of unlike lengths of training can't be compared, and only few trials get far. So a model is
    fitted at one length: the longest that enough trials have reached (Falkner et al., "BOHB", ICML 2018, section 4).
    A trial that ended by itself before the end of its segment counts as one that got there.

    Args:
        objective: Says what of a report counts, and which of a trial's reports gives its value.
        enough: Trials that must have reached a length.
    """

    def __init__(self, objective: Objective, enough: int = 1) -> None:
        self._objective = objective
        self._enough = enough
        self._trials: dict[int, _Known] = {}

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

    def evidence(self) -> list[Evidence]:
        """Give the trials that can be compared, and those that are under way, by number; none where no value is valid.

        Those that ended before that length are left out: they are neither.
        """
        length = self._length()
        if length is None:
            return []
        found = [(trial, known, self._value(known, length)) for trial, known in sorted(self._trials.items())]
        valid = [value for _, _, value in found if is_valid(value)]
        if not valid:
            return []
        worst = max(valid, key=lambda value: self._objective.place(value))
        return list(self._compared(found, length, worst))

    def _compared(
        self, found: list[tuple[int, _Known, float | None]], length: float, worst: float
    ) -> Iterator[Evidence]:
        for trial, known, value in found:
            if known.failed or any(until >= length for until in known.ends):
                yield Evidence(trial, known.params, value if is_valid(value) else worst)
            elif not known.ends:
                yield Evidence(trial, known.params, None)

    def _length(self) -> float | None:
        """Give the longest length that enough trials have reached; the shortest that any has, where none has enough."""
        ends = sorted((max(known.ends) for known in self._trials.values() if known.ends), reverse=True)
        if not ends:
            return None
        return ends[min(self._enough, len(ends)) - 1]

    def _value(self, known: _Known, length: float) -> float | None:
        """Give a trial's value at a length, as it had been by then; None where it failed, or hasn't got there."""
        if known.failed or not any(until >= length for until in known.ends):
            return None
        value = None
        for iteration in sorted(known.values):
            if iteration <= length and self._objective.replaces(known.values[iteration], value):
                value = known.values[iteration]
        return value
