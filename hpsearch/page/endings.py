"""Rungs and the ends of trials, with texts and colours that all pictures of a study share."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hpsearch.events import Started
from hpsearch.page.charts.picture import SERIES, Ink
from hpsearch.results.study import Study
from hpsearch.schedulers.base import RungView
from hpsearch.tables.wording import up_to
from hpsearch.trial import TrialRow

_RUNG = re.compile(r"rung (\d+)(?=: )")


def has_rungs(study: Study) -> bool:
    """Return whether the study promotes trials from rung to rung."""
    return any(rung.rung > 0 for rung in study.rungs)


def rung_title(rung: int, until: int | None, resource: str | None) -> str:
    """Return a rung's title, such as `rung 1 (to iteration 3)`, or `rung 1 (to 3000 tokens)` with that resource."""
    return f"rung {rung} ({up_to(until, resource)})"


def rung_inks(rungs: Iterable[RungView]) -> Mapping[int | None, Ink]:
    """Return a colour for each last iteration of rungs, in order. None, for unbounded rungs, comes last.

    If there are more rungs than colours, neighbours share a colour.
    """
    untils = sorted({rung.until for rung in rungs}, key=lambda until: math.inf if until is None else until)
    each = max(len(untils), len(SERIES))
    return {until: SERIES[index * len(SERIES) // each] for index, until in enumerate(untils)}


@dataclass(frozen=True)
class Endings:
    """Why trials ended, and in which rung."""

    brackets: Mapping[int, int]
    """Last rung of each trial; empty if there are no rungs."""
    _until: Mapping[tuple[int, int], int | None]
    """Last iteration by (bracket, rung); None if unbounded."""
    _resource: str | None

    def why(self, row: TrialRow) -> str:
        """Return why a trial ended: its failure, or the scheduler's reason with the rung's last iteration."""
        if row.failure is not None:
            return row.failure.message
        bracket = self.brackets.get(row.number)
        match = None if bracket is None else _RUNG.match(row.reason)
        if bracket is None or match is None or (bracket, int(match[1])) not in self._until:
            return row.reason
        rung = int(match[1])
        return rung_title(rung, self._until[bracket, rung], self._resource) + row.reason[match.end() :]

    def bracket(self, row: TrialRow) -> str:
        """Return the bracket of a trial for a table; empty if it ran in none."""
        return str(self.brackets.get(row.number, ""))


def endings_of(study: Study) -> Endings:
    """Return why the trials of a study ended, and in which rung."""
    until = {(rung.bracket, rung.rung): rung.until for rung in study.rungs}
    started = (event for event in study.events() if isinstance(event, Started)) if has_rungs(study) else ()
    brackets = {event.segment.trial: event.bracket for event in started}  # the bracket of its last segment
    return Endings(brackets, until, study.sweep.resource)
