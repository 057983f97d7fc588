"""Values of trials over iterations, from a journal; and the ancestry of forked trials."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from hpsearch.decision import Decision
from hpsearch.events import Entry, Event, Failed, Finished, Reverted, Saved
from hpsearch.trial import Params, Report, TrialRow

T = TypeVar("T")


class TrialCurves(Generic[T]):
    """A value for each report that counts, by trial. A journal's events update it."""

    def __init__(self, read: Callable[[Report], T | None]) -> None:
        """Create it without values.

        Args:
            read: Returns the value of a report; None skips the report. It is called in journal order.
        """
        self._read = read
        self._points: dict[int, dict[int, T]] = defaultdict(dict)
        self._sound: dict[int, dict[int, T]] = {}
        """Values of failed trials that count if the trial runs again."""

    def take(self, event: Event, decisions: Iterable[Decision]) -> None:
        """Apply an event and the scheduler's decisions on it."""
        match event:
            case Saved() | Finished() | Failed(retry=False):
                if isinstance(event, Failed):
                    self._sound[event.trial] = dict(self._points[event.trial])
                for report in event.reports:
                    if (reading := self._read(report)) is not None:
                        self._points[report.trial][report.iteration] = reading
            case Reverted(trial=trial, iteration=last):
                self._points[trial] = {i: value for i, value in self._points[trial].items() if i <= last}
        for decision in decisions:
            if decision.action == "withdraw":
                self._points[decision.trial] = self._sound.pop(decision.trial)

    def of(self, trial: int) -> list[tuple[int, T]]:
        """Return (iteration, value) pairs of a trial, by iteration."""
        return sorted(self._points.get(trial, {}).items())

    def all(self) -> dict[int, list[tuple[int, T]]]:
        """Return the (iteration, value) pairs of each trial that has any."""
        return {trial: self.of(trial) for trial, points in self._points.items() if points}


def over_iterations(entries: Iterable[Entry], read: Callable[[Report], T | None]) -> dict[int, list[tuple[int, T]]]:
    """Return (iteration, value) pairs of all reports that count, by trial and by iteration."""
    curves = TrialCurves(read)
    for entry in entries:
        curves.take(entry.event, entry.followed.decisions)
    return curves.all()


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a training that used the params of one trial."""

    trial: int
    start: int
    """Number of iterations before the stage."""
    end: int
    """Last iteration of the stage: where the next trial was forked, or the trial's last iteration."""
    values: Mapping[str, float]
    """The objective's metrics at `end`: NaN if NaN was reported, and missing if nothing was reported."""
    params: Params


def lineage(
    rows: Sequence[TrialRow], trial: int, curves: Mapping[int, Iterable[tuple[int, Mapping[str, float]]]]
) -> tuple[Stage, ...]:
    """Return the stages of a trial's training, the first ancestor's first.

    If the parent had no checkpoint, training began with the fork itself. A child that inherited only weights counts its
    iterations from 0 again.

    Args:
        rows: All trials, by number.
        trial: Number of the trial.
        curves: (iteration, the objective's metrics) pairs that each trial reported.
    """
    stages: list[Stage] = []
    row, end = rows[trial], rows[trial].iterations
    while True:
        values = dict(curves.get(row.number, ())).get(end, {})
        stages.append(Stage(row.number, row.start, end, values, row.params))
        if row.parent is None or row.inherited is None:
            return tuple(reversed(stages))
        end, row = row.inherited, rows[row.parent]
