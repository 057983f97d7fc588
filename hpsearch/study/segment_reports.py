"""What each trial has reported since its scheduler last heard of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from hpsearch.trial import Report

__all__ = ["SegmentReports"]


class SegmentReports:
    """Reports by trial and iteration, until a segment has come to its end.

    It is the same whether a segment was saved, cut or lost on its way: where a trial goes back and runs an iteration
    again, the later report takes the place of the former.
    """

    def __init__(self) -> None:
        self._reports: defaultdict[int, dict[int, Report]] = defaultdict(dict)

    def add(self, trial: int, reports: Sequence[Report]) -> None:
        """Take reports that count."""
        self._reports[trial].update((report.iteration, report) for report in reports)

    def up_to(self, trial: int, iteration: int) -> Sequence[Report]:
        """Give a trial's up to an iteration, by which they are sorted."""
        reports = self._reports.get(trial, {})
        return tuple(reports[at] for at in sorted(reports) if at <= iteration)

    def take(self, trial: int, iteration: int) -> Sequence[Report]:
        """Give what `up_to` gives, and forget all of the trial."""
        reports = self.up_to(trial, iteration)
        self._reports.pop(trial, None)
        return reports
