"""What a journal tells of trials over their iterations, and over time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TypeVar

from hpsearch.events import Failed, Finished, Lost, Reverted, Saved, Started
from hpsearch.study.journaled_state import Entry
from hpsearch.trial import Report

__all__ = ["over_iterations", "times_of_trials"]

T = TypeVar("T")


def over_iterations(entries: Iterable[Entry], read: Callable[[Report], T | None]) -> dict[int, list[tuple[int, T]]]:
    """Give what is read from each report that counts, by trial, in the order of iterations."""
    points: dict[int, dict[int, T]] = defaultdict(dict)
    sound: dict[int, dict[int, T]] = {}
    """Of trials that failed, what counts where they run again."""
    for entry in entries:
        match event := entry.event:
            case Saved() | Finished() | Failed(retry=False):
                if isinstance(event, Failed):
                    sound[event.trial] = dict(points[event.trial])
                for report in event.reports:
                    if (found := read(report)) is not None:
                        points[report.trial][report.iteration] = found
            case Reverted(trial=trial, iteration=last):
                points[trial] = {i: value for i, value in points[trial].items() if i <= last}
        for decision in entry.followed.decisions:
            if decision.action == "withdraw":
                points[decision.trial] = sound.pop(decision.trial)
    return {trial: sorted(curve.items()) for trial, curve in points.items() if curve}


def times_of_trials(entries: Iterable[Entry]) -> dict[int, tuple[float, float | None]]:
    """Give when each trial's first segment began and its last one ended; None where no segment of it has ended."""
    began: dict[int, float] = {}
    ended: dict[int, float] = {}
    for entry in entries:
        when = entry.time
        match entry.event:
            case Started(segment=segment):
                began.setdefault(segment.trial, when)
            case Finished(trial=trial) | Failed(trial=trial) | Lost(trial=trial) | Reverted(trial=trial):
                ended[trial] = when
    return {trial: (when, ended.get(trial)) for trial, when in began.items()}
