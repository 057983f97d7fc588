"""The columns of trials: how each is read and shown; and tables that change while they are shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

from hpsearch.objective import Metric, Objective
from hpsearch.space.expressions import ABSENT
from hpsearch.space.parameter import Structure
from hpsearch.sweep.sweep import Sweep
from hpsearch.tables.formats import param_cell
from hpsearch.tables.layout import Column
from hpsearch.tables.outline import constants_of, outlined
from hpsearch.tables.wording import LONGEST_CELL, duration, numbers, shortened
from hpsearch.trial import Repeated, TrialRow, TrialState, Value

Read = Callable[[TrialRow], Value]
"""Returns a trial's value, or `ABSENT` if the trial has none."""


@dataclass(frozen=True, slots=True)
class TrialColumn:
    """A value of each trial."""

    head: str
    """Name in tables, such as `lr`."""
    read: Read
    show: Callable[[Any], str] = param_cell
    is_text: bool = False
    """Whether cells are text, which is left-aligned and may be cut."""
    is_kept: bool = False
    """Whether the column is shown in a terminal of any width."""
    key: Callable[[TrialRow], Any] | None = None
    """Function that returns a trial's sort key; None: the value is the key."""
    in_csv: str = ""
    """Name in CSV, such as `params.lr`; empty: that in tables."""
    reported: Read | None = None
    """Function for expressions. It returns NaN if the trial has no value because it reported NaN."""

    @property
    def name(self) -> str:
        """Name in CSV."""
        return self.in_csv or self.head

    def cells(self, rows: Sequence[TrialRow]) -> list[str]:
        """Return the cells of rows. Different floats look different, unless this needs more than six digits."""
        values = [self.read(row) for row in rows]
        if self.show is param_cell and all(value is ABSENT or type(value) is float for value in values):
            return numbers([None if value is ABSENT else value for value in values])
        return ["" if value is ABSENT else self.show(value) for value in values]

    def column(self, rows: Sequence[TrialRow]) -> Column:
        """Return the column for a table of these rows."""
        return Column(self.head, self.cells(rows), self.is_text, self.is_kept)

    def sorts_by(self, row: TrialRow) -> Any:
        """Return a row's sort key; None if it always comes last."""
        key = sort_key(self.read(row))
        return key if key is None or self.key is None else self.key(row)


def _present(value: Value) -> Value:
    return ABSENT if value is None else value


def _forked_from(row: TrialRow) -> Value:
    """Return a fork's parent and iteration, such as `"3 at 20"`; only the parent if it had no checkpoint."""
    return f"{row.parent} at {row.inherited}" if row.inherited is not None else _present(row.parent)


def _message(row: TrialRow) -> Value:
    return ABSENT if row.failure is None else row.failure.message


def in_cell(text: str) -> str:
    """Return a reason or a message, shortened to fit in a table."""
    return shortened(text, LONGEST_CELL)


OWN = {
    column.head: column
    for column in (
        TrialColumn("trial", lambda row: row.number, is_kept=True),
        TrialColumn("state", lambda row: str(row.state), is_text=True, is_kept=True),
        TrialColumn("iterations", lambda row: row.iterations),
        TrialColumn("width", lambda row: row.width),
        TrialColumn("lanes", lambda row: row.lanes),
        TrialColumn("asynchronous", lambda row: row.asynchronous),
        TrialColumn("parent", lambda row: _present(row.parent)),
        TrialColumn("inherited", lambda row: _present(row.inherited)),
        TrialColumn("seconds", lambda row: row.seconds),
        TrialColumn("origin", lambda row: row.origin),
        TrialColumn("reason", lambda row: row.reason or ABSENT),
        TrialColumn("reverted", lambda row: row.reverted or ABSENT),
        TrialColumn("failure", _message),
        TrialColumn("checkpoint", lambda row: _present(row.checkpoint)),
    )
}
"""What every trial may have, by name."""

SHOWN = {
    column.head: column
    for column in (
        TrialColumn("parent", _forked_from, key=lambda row: row.parent),
        TrialColumn("asynchronous", lambda row: "yes" if row.asynchronous else ABSENT, is_text=True),
        TrialColumn("code", lambda row: "+".join(map(str, sorted(row.code))), is_kept=True),
        TrialColumn("time", lambda row: row.seconds or ABSENT, duration),
        TrialColumn("taken back", lambda row: row.reverted or ABSENT, in_cell, is_text=True),
        TrialColumn("failure", _message, in_cell, is_text=True, is_kept=True),
        TrialColumn("why", lambda row: row.reason or ABSENT, in_cell, is_text=True),
    )
}
"""The same for people, in tables, by head."""


def value_columns(metrics: Sequence[str]) -> list[str]:
    """Return the value columns: `value` for one metric, `values.<name>` for several."""
    return [f"values.{name}" for name in metrics] if len(metrics) > 1 else ["value"]


def goal_columns(objective: Objective) -> list[TrialColumn]:
    """Return a column for the value of each goal."""
    names = value_columns([goal.name for goal in objective.goals])
    return [_goal(index, goal, name) for index, (goal, name) in enumerate(zip(objective.goals, names, strict=False))]


def _goal(index: int, goal: Metric, name: str) -> TrialColumn:
    def reported(row: TrialRow) -> Value:
        if row.values:
            return row.values[index]
        is_nan = row.state is not TrialState.FAILED and math.isnan(row.metrics.get(goal.name, 0.0))
        return math.nan if is_nan else ABSENT

    return TrialColumn(
        goal.name,
        lambda row: row.values[index] if row.values else ABSENT,
        is_kept=True,
        key=lambda row: (not row.feasible, goal.signed(row.values[index])),
        in_csv=name,
        reported=reported,
    )


def breaks_column(objective: Objective) -> TrialColumn:
    """Return the column of the outcome constraints that a trial violates."""
    return TrialColumn("breaks", lambda row: ", ".join(objective.broken(row.score)) or ABSENT, is_text=True)


def item_column(kind: str, name: str) -> TrialColumn:
    """Return the column of one of the `params`, `metrics` or `notes`."""
    head = f"notes.{name}" if kind == "notes" else name
    return TrialColumn(head, lambda row: getattr(row, kind).get(name, ABSENT), in_csv=f"{kind}.{name}")


def repeat_columns(rows: Sequence[TrialRow], objective: Objective) -> list[TrialColumn]:
    """Return the columns of a study with repeats: `configuration, repeat, mean, std, n`; without repeats none.

    The last three are over the repeats of the trial's configuration that are complete with a value. With several goals
    `mean.<name>` and `std.<name>` replace `mean` and `std`. A sweep that asks for a quantile has it in place of the
    mean.
    """
    first = next((row.repeated for row in rows if row.repeated is not None), None)
    if first is None:
        return []
    columns = [_repeated(name, attrgetter(name)) for name in ("configuration", "repeat")]
    for index, goal in enumerate(objective.goals):
        suffix = f".{goal.name}" if objective.several else ""
        for name, values in ((first.statistic, attrgetter("values")), ("std", attrgetter("deviations"))):
            columns.append(_repeated(f"{name}{suffix}", partial(_at, values, index)))
    return [*columns, _repeated("n", attrgetter("n"))]


def _at(values: Callable[[Repeated], Sequence[float | None]], index: int, repeated: Repeated) -> float | None:
    return values(repeated)[index] if repeated.n else None


def _repeated(head: str, read: Callable[[Repeated], Value]) -> TrialColumn:
    return TrialColumn(head, lambda row: ABSENT if row.repeated is None else _present(read(row.repeated)), is_kept=True)


def metric_names(rows: Iterable[TrialRow]) -> list[str]:
    """Return the metrics that these trials reported. They are sorted, so that the order of reports has no effect."""
    return sorted({name for row in rows for name in row.metrics})


def note_names(rows: Iterable[TrialRow]) -> list[str]:
    """Return the names of these trials' notes, sorted."""
    return sorted({name for row in rows for name in row.notes})


def trial_columns(rows: Sequence[TrialRow], params: Iterable[str], objective: Objective) -> dict[str, TrialColumn]:
    """Return all columns of trials, by their name in CSV.

    Args:
        rows: The trials.
        params: Flat names of their params.
        objective: The objective.
    """
    columns = [*OWN.values(), *repeat_columns(rows, objective)]
    if objective.constraints:
        columns.append(TrialColumn("feasible", lambda row: row.feasible if row.values else ABSENT))
    columns += goal_columns(objective)
    named = {"params": params, "metrics": metric_names(rows), "notes": note_names(rows)}
    columns += [item_column(kind, name) for kind, names in named.items() for name in names]
    return {column.name: column for column in columns}


def sort_key(value: Value) -> Any:
    """Return a value's sort key: numbers come first, then texts. Lists and mappings are sorted as texts.

    Returns:
        The key; None if the value comes last.
    """
    if value is ABSENT or value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, int | float):
        return 0, value, ""
    return 1, 0, value if isinstance(value, str) else repr(value)


def in_order(keys: Mapping[int, Any], descending: bool) -> list[int]:
    """Return the numbers of trials by their sort keys; those without a key come last, by number, in either order."""
    having = sorted(((key, trial) for trial, key in keys.items() if key is not None), reverse=descending)
    return [trial for _, trial in having] + sorted(trial for trial, key in keys.items() if key is None)


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

    @property
    def first(self) -> TrialColumn:
        """The column that trials are sorted by at first: the goal if there is one, else the number."""
        goals = [column for column in self.all if column.reported is not None]
        return goals[0] if len(goals) == 1 else self.all[0]

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
        columns = [OWN["trial"], OWN["state"], OWN["iterations"], *goal_columns(self._objective)]
        if self._objective.constraints:
            columns.append(breaks_column(self._objective))
        columns += [self._param(name) for name in self._params if name not in constants]
        columns += [item_column("metrics", name) for name in sorted(self._metrics)]
        if self._forked:
            columns.append(SHOWN["parent"])
        if self._wide:
            columns.append(OWN["width"])
        if self._asynchronous:
            columns.append(SHOWN["asynchronous"])
        return [*columns, SHOWN["time"], SHOWN["why"]]

    def _param(self, name: str) -> TrialColumn:
        def read(row: TrialRow) -> Value:
            outline = outlined((row,), self._space)[0][0] if self._structured else row
            return outline.params.get(name, ABSENT)

        return TrialColumn(name, read, is_text=True)
