"""Trials over their iterations and over time, from a journal, and what forked ones were trained with before."""

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
    """A value of each report that counts, by trial, updated by a journal's entries."""

    def __init__(self, read: Callable[[Report], T | None]) -> None:
        """Begin without values.

        Args:
            read: Returns the value of a report, in the order of the journal; None is skipped.
        """
        self._read = read
        self._points: dict[int, dict[int, T]] = defaultdict(dict)
        self._sound: dict[int, dict[int, T]] = {}
        """For failed trials: the values that count if they run again."""

    def take(self, event: Event, decisions: Iterable[Decision]) -> None:
        """Move on by an event and what was decided on it."""
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
        """Return what was read of a trial, in the order of iterations."""
        return sorted(self._points.get(trial, {}).items())

    def all(self) -> dict[int, list[tuple[int, T]]]:
        """Return what was read of each trial that has any."""
        return {trial: self.of(trial) for trial, points in self._points.items() if points}


def over_iterations(entries: Iterable[Entry], read: Callable[[Report], T | None]) -> dict[int, list[tuple[int, T]]]:
    """Return the values of all reports that count, by trial, in order of iterations."""
    curves = TrialCurves(read)
    for entry in entries:
        curves.take(entry.event, entry.followed.decisions)
    return curves.all()


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a training, with the params of one trial."""

    trial: int
    start: int
    """Iterations that were done when it began."""
    end: int
    """Its last iteration: where its fork began, or the trial's last one."""
    values: Mapping[str, float]
    """Deciding metrics at `end`; NaN if NaN was reported; metrics without a report are missing."""
    params: Params


def lineage(
    rows: Sequence[TrialRow], trial: int, curves: Mapping[int, Iterable[tuple[int, Mapping[str, float]]]]
) -> tuple[Stage, ...]:
    """Return the stages of a trial's training, the first ancestor's first.

    Where nothing was taken over from a parent, since it had no checkpoint, training began with the fork itself. A child
    that inherited weights counts its iterations from 0 again.

    Args:
        rows: All trials, by number.
        trial: The last one's number.
        curves: Trial to (iteration, metrics that decide) of what was reported.
    """
    stages: list[Stage] = []
    row, end = rows[trial], rows[trial].iterations
    while True:
        values = dict(curves.get(row.number, ())).get(end, {})
        stages.append(Stage(row.number, row.start, end, values, row.params))
        if row.parent is None or row.inherited is None:
            return tuple(reversed(stages))
        end, row = row.inherited, rows[row.parent]
