"""A study as two CSV files: a row for each trial, and a row for each report that counts."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hpsearch.report.tables import csv_text, rows_to_csv
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import Report, TrialRow

__all__ = ["REPORTS_NAME", "TRIALS_NAME", "put_in_place", "reports_csv", "trials_csv"]

TRIALS_NAME = "trials.csv"
REPORTS_NAME = "reports.csv"


def trials_csv(rows: Sequence[TrialRow], sweep: Sweep) -> str:
    """Give the table of all trials, by number, as another sweep can begin with it."""
    names = sweep.parameters.columns(row.params for row in rows)
    # Whoever reads it back judges by what is constrained, too.
    return rows_to_csv(rows, names, metrics=bool(sweep.outcome_constraints), objective=sweep.objective)


def reports_csv(reports: Mapping[int, Iterable[Report]]) -> str:
    """Give `trial,iteration,<metric>...,seconds`: metrics sorted by name and empty where they weren't reported.

    A metric called as one of the other three has the column `metrics.<name>`: readers keep one column of a name.

    Args:
        reports: Of each trial those that count, by iteration.
    """
    rows = [report for trial in sorted(reports) for report in reports[trial]]
    names = sorted({name for report in rows for name in report.metrics})
    return csv_text(
        ["trial", "iteration", *map(_column, names), "seconds"],
        ([report.trial, report.iteration, *map(report.metrics.get, names), report.seconds] for report in rows),
    )


def _column(metric: str) -> str:
    """Name a metric's column; no two metrics have the same."""
    taken = metric in ("trial", "iteration", "seconds") or metric.startswith("metrics.")
    return f"metrics.{metric}" if taken else metric


def put_in_place(content: bytes, target: Path) -> None:
    """Write a file by one rename, in place of one that is there: who reads it meanwhile reads the one or the other.

    A link that is there is replaced, too: a study may have been made by somebody else.
    """
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("xb") as file:
            file.write(content)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
