"""An observer that hands each trial to another tool, once, when it has ended."""

from __future__ import annotations

import hashlib
import shlex
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence

from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.labels import labels_of
from hpsearch.observers.base import Observed, Observer, Record
from hpsearch.observers.ended_trials import EndedTrial, EndedTrials
from hpsearch.schedulers.base import RungView

__all__ = ["TrialLog", "facts_of", "key_of"]

_BURST_SECONDS = 5.0
"""Seconds of one call while the sweep runs; the rest waits for the next call."""


class TrialLog(Observer):
    """Writes ended trials to another tool's store; subclasses define how.

    Which trials are there is read from the store itself, not from a list of our own. A trial that continues after its
    end (extended or retried) is replaced when it ends again.
    """

    deadline = 120.0  # the tool's import may take a quarter of it
    keeps = True

    name: str
    """Its name in sweep files."""

    def __init__(self, observed: Observed) -> None:
        directory = shlex.quote(str(observed.directory))
        self.remedy = f"`hpsearch export {directory} --observer {self.name}` gives it the rest"
        self._place = StudyDirectory(observed.directory)
        self._trials = EndedTrials(observed.sweep)
        self._changed: dict[int, None] = {}
        self._there: dict[int, str] | None = None  # digests of the written trials, once they are read
        self._all_told = False

    @abstractmethod
    def find(self) -> Mapping[int, str]:
        """Prepare the tool, and return the digests of this study's complete trials in the store.

        Called once, before the first is written.
        """

    @abstractmethod
    def write(self, trial: EndedTrial) -> None:
        """Write a trial, in place of any earlier version, complete or not."""

    def labels(self) -> Sequence[str]:
        """Return the tags of the study, as they are now."""
        return labels_of(self._place).tags if self._place.exists() else ()

    def observe(self, record: Record) -> None:
        """Receive a record."""
        self._trials.take(record)

    def rungs(self, rungs: Sequence[RungView]) -> None:
        """Handle the end of the earlier runs' records: their ended trials may have continued since."""
        self._all_told = True

    def flush(self) -> None:
        """Write trials that have ended, as far as a few seconds go."""
        if self._all_told:
            self._look()  # early: an import takes seconds, and mistakes should be reported before trials have run
            self._write_changed(time.monotonic() + _BURST_SECONDS)

    def close(self) -> None:
        """Write all that is left."""
        if self._all_told:
            self._write_changed(None)

    def _write_changed(self, until: float | None) -> None:
        """Write what has changed; `until` is on the monotonic clock."""
        # A pending trial that continued since isn't among the ended ones, and comes again when it ends.
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
    told = observed.identity or str(observed.directory.resolve())
    return hashlib.sha256(told.encode()).hexdigest()[:16]
