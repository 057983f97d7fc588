"""Ended trials for observers: rows, reports and times; and the base class of observers that write to another tool."""

from __future__ import annotations

import hashlib
import json
import shlex
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpsearch.decision import Followed
from hpsearch.events import Failed, Finished, Lost, Pruned, Reverted, Started
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.labels import labels_of
from hpsearch.observers.base import Observed, Observer, Record
from hpsearch.results.over_time import TrialCurves
from hpsearch.schedulers.base import RungView
from hpsearch.study.journaled_state import JournaledState
from hpsearch.study.trial_records import TERMINAL
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.formats import strict_json
from hpsearch.trial import Report, TrialRow

_BURST_SECONDS = 5.0
"""Time limit in seconds for one call while the sweep runs. Trials that remain wait for the next call."""


@dataclass(frozen=True, slots=True)
class TimedReport:
    """A report that counts."""

    time: float
    """Start of the report's segment plus the duration of the iterations since, in seconds since the epoch."""
    report: Report


@dataclass(frozen=True, slots=True)
class EndedTrial:
    """A trial that has ended: complete, stopped or failed."""

    row: TrialRow
    reported: tuple[TimedReport, ...]
    """All reports that count, by iteration."""
    began: float
    """Start time of the first segment, in seconds since the epoch."""
    ended: float
    """Time at which the trial's end was recorded, in seconds since the epoch."""

    @property
    def digest(self) -> str:
        """A digest of the content, without times. It changes if a trial continues after its end and ends again."""
        row = self.row
        content = strict_json(
            {
                "params": dict(row.params),
                "state": str(row.state),
                "reason": row.reason,
                "failure": None if row.failure is None else row.failure.message,
                "reports": [[reported.report.iteration, dict(reported.report.metrics)] for reported in self.reported],
            }
        )
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


class EndedTrials:
    """Collects the ended trials of a study from its records, from the first record on.

    Args:
        sweep: The sweep.
    """

    def __init__(self, sweep: Sweep) -> None:
        self._journaled = JournaledState(sweep)
        self._curves = TrialCurves(self._timed)
        self._began: dict[int, float] = {}
        self._ended: dict[int, float] = {}  # by ended trial
        self._clocks: dict[int, float] = {}  # by trial: time of its last report
        self._changed: set[int] = set()

    def take(self, record: Record) -> None:
        """Apply the next record."""
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
        """Return the trials that ended or ended again since the last call, in the order of their ends."""
        changed, self._changed = self._changed, set()
        return sorted(changed, key=lambda trial: (self._ended[trial], trial))

    def has(self, trial: int) -> bool:
        """Return whether a trial has ended."""
        return trial in self._ended

    def of(self, trial: int) -> EndedTrial:
        """Return the data of an ended trial."""
        row = self._journaled.records.of(trial).row()
        return EndedTrial(row, self.reported(trial), self._began[trial], self._ended[trial])

    def rows(self) -> list[TrialRow]:
        """Return the current row of every trial, by number, also of trials that haven't ended."""
        return self._journaled.rows()

    def reported(self, trial: int) -> tuple[TimedReport, ...]:
        """Return the reports of a trial that count, by iteration."""
        return tuple(reported for _, reported in self._curves.of(trial))

    def _timed(self, report: Report) -> TimedReport:
        self._clocks[report.trial] += report.seconds
        return TimedReport(self._clocks[report.trial], report)


class TrialLog(Observer):
    """Writes ended trials to another tool's store. Subclasses define how.

    The store itself tells which trials are already written; there is no separate list. A trial that continues after its
    end (extended or retried) is replaced when it ends again.
    """

    deadline = 120.0  # the tool's import may take a quarter of this time
    keeps = True

    name: str
    """Name of the observer in sweep files."""

    def __init__(self, observed: Observed) -> None:
        directory = shlex.quote(str(observed.directory))
        self.remedy = f"`hpsearch export {directory} --observer {self.name}` gives it the rest"
        self._study_dir = StudyDirectory(observed.directory)
        self._trials = EndedTrials(observed.sweep)
        self._changed: dict[int, None] = {}
        self._there: dict[int, str] | None = None  # digests of the written trials; None until they are read
        self._all_told = False

    @abstractmethod
    def find(self) -> Mapping[int, str]:
        """Prepare the tool, and return the digests of this study's complete trials in the store.

        Called once, before the first trial is written.
        """

    @abstractmethod
    def write(self, trial: EndedTrial) -> None:
        """Write a trial, and replace any earlier version of it, complete or not."""

    def labels(self) -> Sequence[str]:
        """Return the current tags of the study."""
        return labels_of(self._study_dir).tags if self._study_dir.exists() else ()

    def observe(self, record: Record) -> None:
        """Receive a record."""
        self._trials.take(record)

    def rungs(self, rungs: Sequence[RungView]) -> None:
        """Note that all records of earlier runs have arrived. Before, trials that look ended may continue later."""
        self._all_told = True

    def flush(self) -> None:
        """Write ended trials, for a few seconds at most."""
        if self._all_told:
            self._look()  # early, as an import takes seconds, and errors should be reported before trials have run
            self._write_changed(time.monotonic() + _BURST_SECONDS)

    def close(self) -> None:
        """Write all remaining trials."""
        if self._all_told:
            self._write_changed(None)

    def _write_changed(self, until: float | None) -> None:
        """Write changed trials until a time on the monotonic clock; None: no limit."""
        # A pending trial that continued since isn't among the ended ones. It is added again when it ends.
        self._changed |= dict.fromkeys(self._trials.take_changed())
        while self._changed and (until is None or time.monotonic() < until):
            number = next(iter(self._changed))
            if self._trials.has(number):
                self._write(self._trials.of(number))
            del self._changed[number]

    def _look(self) -> dict[int, str]:
        if self._there is None:
            self._there = dict(self.find())
        return self._there

    def _write(self, trial: EndedTrial) -> None:
        number, digest = trial.row.number, trial.digest
        if self._look().get(number) != digest:
            self.write(trial)
            self._look()[number] = digest


def facts_of(trial: EndedTrial) -> dict[str, str | int | float]:
    """Return a trial's further data, besides params and metrics."""
    row = trial.row
    facts: dict[str, str | int | float] = {
        "state": str(row.state),
        "reason": row.reason,
        "iterations": row.iterations,
        "seconds": row.seconds,
        "origin": row.origin,
        "width": row.width,
    }
    if row.value is not None:
        facts["value"] = row.value
    if row.asynchronous:
        facts["asynchronous"] = "yes"
    if row.parent is not None:
        facts["parent"] = row.parent
    return facts


def key_of(observed: Observed) -> str:
    """Return this study's identity, independent of its path, as 16 hexadecimal digits."""
    identity = observed.identity or str(observed.directory.resolve())
    return hashlib.sha256(identity.encode()).hexdigest()[:16]
