"""Data of ended trials for observers: rows, reports and their times."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from hpsearch.decision import Followed
from hpsearch.events import Failed, Finished, Lost, Pruned, Reverted, Started
from hpsearch.observers.base import Record
from hpsearch.results.over_time import TrialCurves
from hpsearch.study.journaled_state import JournaledState
from hpsearch.study.trial_records import TERMINAL
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.formats import strict_json
from hpsearch.trial import Report, TrialRow

__all__ = ["EndedTrial", "EndedTrials", "Reported"]


@dataclass(frozen=True, slots=True)
class Reported:
    """A report that counts."""

    time: float
    """Time of its segment's start plus the iterations since, in seconds since the epoch."""
    report: Report


@dataclass(frozen=True, slots=True)
class EndedTrial:
    """A trial that has ended: complete, stopped or failed."""

    row: TrialRow
    reported: tuple[Reported, ...]
    """All that counts, by iteration."""
    began: float
    """When its first segment was started, in seconds since the epoch."""
    ended: float
    """When it was known to have ended."""

    @property
    def digest(self) -> str:
        """A digest of the content, which changes when a trial continues after its end and ends again.

        Times aren't part of it.
        """
        row = self.row
        content = strict_json(
            {
                "params": dict(row.params),
                "state": str(row.state),
                "reason": row.reason,
                "failure": None if row.failure is None else row.failure.message,
                "reports": [[one.report.iteration, dict(one.report.metrics)] for one in self.reported],
            }
        )
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


class EndedTrials:
    """Follows a study by its records, from the first one on.

    Args:
        sweep: What is run.
    """

    def __init__(self, sweep: Sweep) -> None:
        self._journaled = JournaledState(sweep)
        self._curves = TrialCurves(self._timed)
        self._began: dict[int, float] = {}
        self._ended: dict[int, float] = {}  # ended trials to their times
        self._clocks: dict[int, float] = {}  # up to when each trial has run, by its reports
        self._changed: set[int] = set()

    def take(self, record: Record) -> None:
        """Move on by a record."""
        event = record.event
        if isinstance(event, Started):
            trial = event.segment.trial
            self._began.setdefault(trial, record.time)
            self._clocks[trial] = record.time
        self._journaled.apply(event)
        self._journaled.follow(Followed(record.decisions))
        self._curves.take(event, record.decisions)
        touched = {decision.trial for decision in record.decisions}
        if isinstance(event, Finished | Failed | Lost | Reverted | Pruned):
            touched.add(event.trial)
        for trial in touched:
            if self._journaled.records.of(trial).state in TERMINAL:
                self._ended.setdefault(trial, record.time)
                self._changed.add(trial)
            else:
                self._ended.pop(trial, None)
                self._changed.discard(trial)

    def take_changed(self) -> list[int]:
        """Return the trials that ended, or whose end changed, since the last call, in the order of their ends."""
        changed, self._changed = self._changed, set()
        return sorted(changed, key=lambda trial: (self._ended[trial], trial))

    def has(self, trial: int) -> bool:
        """Return whether a trial has ended."""
        return trial in self._ended

    def of(self, trial: int) -> EndedTrial:
        """Return a trial that has ended."""
        row = self._journaled.records.of(trial).row()
        return EndedTrial(row, self.reported(trial), self._began[trial], self._ended[trial])

    def rows(self) -> list[TrialRow]:
        """Return every trial's current data, by number, also of trials that haven't ended."""
        return self._journaled.rows()

    def reported(self, trial: int) -> tuple[Reported, ...]:
        """Return what a trial has reported that counts, by iteration."""
        return tuple(reported for _, reported in self._curves.of(trial))

    def _timed(self, report: Report) -> Reported:
        self._clocks[report.trial] += report.seconds
        return Reported(self._clocks[report.trial], report)
