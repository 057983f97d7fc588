"""The columns of a table of trials that changes while it is shown. Only the visible rows are formatted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hpsearch.objective import Metric, Objective
from hpsearch.space.parameter import Structure
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.formats import param_cell
from hpsearch.tables.outline import constants_of, outlined
from hpsearch.tables.selection import sort_key
from hpsearch.tables.wording import duration, number, numbers, shortened
from hpsearch.trial import TrialRow, Value

_LONGEST = 60
"""Maximum number of characters of a reason."""


@dataclass(frozen=True, slots=True)
class TrialColumn:
    """A column of the table."""

    head: str
    read: Callable[[TrialRow], Value]
    """Function that returns a trial's value; None if the trial has none."""
    show: Callable[[Value], str] = param_cell
    is_text: bool = False
    """Whether cells are text, which is left-aligned and may be cut."""
    is_kept: bool = False
    """Whether the column is shown in a terminal of any width."""
    key: Callable[[TrialRow], Any] | None = None
    """Function that returns a trial's sort key; None: the value is the key."""

    def cells(self, rows: Sequence[TrialRow]) -> list[str]:
        """Return the cells of rows. Different floats look different, unless this needs more than six digits."""
        values = [self.read(row) for row in rows]
        if self.show is param_cell and all(value is None or type(value) is float for value in values):
            return numbers(values)
        return ["" if value is None else self.show(value) for value in values]

    def sorts_by(self, row: TrialRow) -> Any:
        """Return a row's sort key; None if it always comes last."""
        key = sort_key(self.read(row))
        return key if key is None or self.key is None else self.key(row)


def sorted_rows(rows: Sequence[TrialRow], column: TrialColumn, descending: bool) -> list[TrialRow]:
    """Sort trials by a column; equal ones by number. Those without a value come last, by number, in either order."""
    keyed = [(column.sorts_by(row), row.number, row) for row in rows]
    having = sorted((item for item in keyed if item[0] is not None), key=lambda item: item[:2], reverse=descending)
    return [row for _, _, row in having] + [row for key, _, row in keyed if key is None]


class Columns:
    """The columns of a sweep. Trials with other parameters add columns.

    Args:
        sweep: The sweep.
    """

    def __init__(self, sweep: Sweep) -> None:
        self._objective, self._space = sweep.objective, sweep.parameters
        self._structured = any(isinstance(parameter.holds, Structure) for parameter in self._space.declared)
        self._params = dict.fromkeys(outlined((), self._space)[1])
        self._metrics: dict[str, None] = {}
        self._forked = False
        self._wide = sweep.resources.widest > 1
        self._asynchronous = bool(sweep.strategies.asynchronous)
        self.all = self._build()
        """All columns, in order."""

    def see(self, rows: Iterable[TrialRow]) -> bool:
        """Update the columns for new or changed rows, and return whether the columns changed."""
        before = len(self._params), len(self._metrics), self._forked, self._wide
        for row in rows:
            if not row.params.keys() <= self._params.keys():
                self._params |= dict.fromkeys(outlined((row,), self._space)[1])
            if not self._objective.goals and not row.metrics.keys() <= self._metrics.keys():
                self._metrics |= dict.fromkeys(row.metrics)
            self._forked |= row.parent is not None
            self._wide |= row.width > 1
        if before == (len(self._params), len(self._metrics), self._forked, self._wide):
            return False
        self.all = self._build()
        return True

    def _build(self) -> list[TrialColumn]:
        constants = constants_of(self._params, [self._space])
        columns = [
            TrialColumn("trial", lambda row: row.number, is_kept=True),
            TrialColumn("state", lambda row: str(row.state), is_text=True, is_kept=True),
            TrialColumn("iterations", lambda row: row.iterations),
            *(_goal(index, goal) for index, goal in enumerate(self._objective.goals)),
        ]
        if self._objective.constraints:
            columns.append(TrialColumn("breaks", _breaks(self._objective), shortened_text, is_text=True))
        columns += [_param(name, self._outlined) for name in self._params if name not in constants]
        columns += [_metric(name) for name in sorted(self._metrics)]
        if self._forked:
            columns.append(TrialColumn("parent", lambda row: row.parent))
        if self._wide:
            columns.append(TrialColumn("width", lambda row: row.width))
        if self._asynchronous:
            columns.append(TrialColumn("asynchronous", lambda row: "yes" if row.asynchronous else None, is_text=True))
        columns.append(TrialColumn("time", lambda row: row.seconds or None, duration))
        columns.append(TrialColumn("why", lambda row: row.reason or None, shortened_text, is_text=True))
        return columns

    def _outlined(self, row: TrialRow, name: str) -> Value:
        if not self._structured:
            return row.params.get(name)
        return outlined((row,), self._space)[0][0].params.get(name)


def shortened_text(text: str) -> str:
    """Return a reason, shortened to fit in a table."""
    return shortened(text, _LONGEST)


def _goal(index: int, goal: Metric) -> TrialColumn:
    return TrialColumn(
        goal.name,
        lambda row: float(row.values[index]) if row.values else None,
        is_kept=True,
        key=lambda row: (not row.feasible, goal.signed(row.values[index])),
    )


def _breaks(objective: Objective) -> Callable[[TrialRow], str | None]:
    return lambda row: ", ".join(objective.broken(row.score)) or None


def _param(name: str, read: Callable[[TrialRow, str], Value]) -> TrialColumn:
    return TrialColumn(name, lambda row: read(row, name), is_text=True)


def _metric(name: str) -> TrialColumn:
    return TrialColumn(name, lambda row: row.metrics.get(name), number)
