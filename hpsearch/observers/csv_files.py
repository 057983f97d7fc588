"""Writes `trials.csv` and `reports.csv` in the study's directory, and keeps them up to date."""

from __future__ import annotations

import time

from hpsearch.journal.filesystem import put_in_place
from hpsearch.observers.base import Observed, Observer, Record
from hpsearch.observers.trial_log import EndedTrials
from hpsearch.tables.trials import REPORTS_NAME, TRIALS_NAME, reports_csv, trials_csv

_SHARE = 0.02
"""Largest fraction of the sweep's time that is spent on writing, as each update rewrites the whole files."""


class CsvObserver(Observer):
    """Writes the same CSV files as `hpsearch export`, with all trials and reports so far.

    Args:
        observed: The study.
    """

    def __init__(self, observed: Observed) -> None:
        self._directory = observed.directory
        self._sweep = observed.sweep
        self._trials = EndedTrials(observed.sweep)
        self._is_new = False
        self._next = 0.0  # on the monotonic clock

    def observe(self, record: Record) -> None:
        """Receive a record."""
        self._trials.take(record)
        self._is_new = True

    def flush(self) -> None:
        """Write the files, unless they were written a short time ago."""
        began = time.monotonic()
        if self._is_new and began >= self._next:
            self._write()
            now = time.monotonic()
            self._next = now + (now - began) / _SHARE

    def close(self) -> None:
        """Write the files."""
        self._write()

    def _write(self) -> None:
        rows = self._trials.rows()
        reports = {row.number: [reported.report for reported in self._trials.reported(row.number)] for row in rows}
        put_in_place(trials_csv(rows, self._sweep).encode(), self._directory / TRIALS_NAME)
        put_in_place(reports_csv(reports).encode(), self._directory / REPORTS_NAME)
        self._is_new = False
