"""Fields of a trial, by which trials are filtered, sorted and shown."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpsearch.config.checks import InvalidKey, nearest
from hpsearch.errors import HpsearchError
from hpsearch.objective import Objective
from hpsearch.space.expressions import ABSENT, Expression, Uncomputable
from hpsearch.tables.formats import param_cell
from hpsearch.tables.layout import WHOLE, Column, Screen, table_text
from hpsearch.tables.trials import metric_names, note_names, repeat_columns, value_columns
from hpsearch.tables.wording import numbers
from hpsearch.trial import TrialRow, TrialState, Value

_Read = Callable[[TrialRow], Value]

_OWN: Mapping[str, _Read] = {
    "trial": lambda row: row.number,
    "state": lambda row: str(row.state),
    "iterations": lambda row: row.iterations,
    "width": lambda row: row.width,
    "lanes": lambda row: row.lanes,
    "asynchronous": lambda row: row.asynchronous,
    "parent": lambda row: row.parent,
    "inherited": lambda row: row.inherited,
    "seconds": lambda row: row.seconds,
    "origin": lambda row: row.origin,
    "reason": lambda row: row.reason or None,
    "reverted": lambda row: row.reverted or None,
    "failure": lambda row: None if row.failure is None else row.failure.message,
    "checkpoint": lambda row: row.checkpoint,
}


@dataclass(frozen=True, slots=True)
class Field:
    """A named value of a trial."""

    name: str
    """Name in CSV, such as `params.lr`."""
    head: str
    """Name in tables, such as `lr`."""
    read: _Read
    """Function that returns a trial's value, or `ABSENT` if the trial has none."""
    reported: _Read | None = None
    """The same function for expressions. It returns NaN if the trial has no value because it reported NaN."""


class Fields:
    """All fields of a study's trials.

    Args:
        rows: All trials of the study.
        params: Flat names of their params.
        objective: The objective.
    """

    def __init__(self, rows: Sequence[TrialRow], params: Sequence[str], objective: Objective) -> None:
        own_fields = {name: Field(name, name, _present(read)) for name, read in _OWN.items()}
        self.state = own_fields["state"]
        goals = [goal.name for goal in objective.goals]
        values = {
            column: Field(column, goal, _value(index), _value_or_nan(index, goal))
            for index, (column, goal) in enumerate(zip(value_columns(goals) if goals else [], goals, strict=True))
        }
        for column in repeat_columns(rows, objective):
            own_fields[column] = Field(column, column, _repeated(column, objective))
        if objective.constraints:
            own_fields["feasible"] = Field("feasible", "feasible", lambda row: row.feasible if row.values else ABSENT)
        self._by_name = {
            **own_fields,
            **values,
            **{f"params.{name}": Field(f"params.{name}", name, _param(name)) for name in params},
            **{f"metrics.{name}": Field(f"metrics.{name}", name, _metric(name)) for name in metric_names(rows)},
            **{column: Field(column, column, _note(name)) for name in note_names(rows) for column in [f"notes.{name}"]},
        }
        self._meant: dict[str, list[Field]] = {f"trial.{name}": [field] for name, field in own_fields.items()}
        for field in self._by_name.values():
            self._meant.setdefault(field.name, []).append(field)
        for field in self._by_name.values():
            meanings = self._meant.setdefault(field.head, [])
            # The objective's metrics are also reported: without a prefix, their names mean the trial's value.
            judged = field.name.startswith("metrics.") and any(other in values.values() for other in meanings)
            if field not in meanings and not judged:
                meanings.append(field)

    def find(self, name: str, option: str) -> Field:
        """Return the field with a name: a column of the CSV, or a column's head in the table.

        Raises:
            HpsearchError: No field has the name, or several have it.
        """
        meant = self._meant.get(name, [])
        if len(meant) > 1:
            names = " or ".join(map(self._unmistakable, meant))
            raise HpsearchError(f"{option}: {name!r} must say which is meant: {names}")
        if meant:
            return meant[0]
        candidates = dict.fromkeys([*(field.head for field in self._by_name.values()), *self._by_name])
        raise HpsearchError(f"{option}: must name what trials have, got {name!r}; {nearest(name, candidates)}")

    def copies(self, name: str) -> list[Field]:
        """Return the fields of params that match a name with `*` in place of numbers."""
        pattern = re.compile(re.escape(name).replace(r"\*", r"\d+"))
        return [
            field
            for field in self._by_name.values()
            if pattern.fullmatch(field.name) or (field.name.startswith("params.") and pattern.fullmatch(field.head))
        ]

    def _unmistakable(self, field: Field) -> str:
        """Return an unambiguous name of a field, if it has one."""
        names = field.name, f"trial.{field.name}", field.head
        return next((name for name in names if self._meant.get(name) == [field]), field.name)


def where(rows: Sequence[TrialRow], fields: Fields, text: str) -> list[TrialRow]:
    """Return the trials for which an expression is true. Trials that lack one of its fields are left out.

    Raises:
        HpsearchError: The text isn't an expression, names a field that no trial has, or fails for a trial.
    """
    option = "--where"
    try:
        expression = Expression(text)
    except InvalidKey as error:
        raise HpsearchError(f"{option}: {error}") from None
    readers: dict[str, _Read] = {}
    for name in expression.names:
        if "*" in name and (copies := fields.copies(name)):
            readers[name] = _all_of(copies)
        else:
            field = fields.find(name, option)
            readers[name] = field.reported or field.read
    for name, value in expression.compared:
        if readers[name] is fields.state.read and value not in set(TrialState):
            states = nearest(str(value), TrialState)
            raise HpsearchError(f"{option}: {name} must be one that trials have, got {value!r}; {states}")
    chosen = []
    for row in rows:
        try:
            if expression.holds(lambda name, row=row: readers[name](row)):  # type: ignore[misc]
                chosen.append(row)
        except Uncomputable:
            continue
        except InvalidKey as error:
            raise HpsearchError(f"{option}: of trial {row.number}: {error}") from None
    return chosen


def ordered(rows: Sequence[TrialRow], fields: Fields, sort: str) -> list[TrialRow]:
    """Sort by `NAME` or `NAME:desc`. Trials without the field, or with NaN or null, come last.

    Raises:
        HpsearchError: There is no such field.
    """
    name, _, order = sort.rpartition(":") if sort.endswith((":asc", ":desc")) else (sort, "", "asc")
    field = fields.find(name, "--sort")
    keyed = [(key, row) for row in rows if (key := sort_key(field.read(row))) is not None]
    having = [row for _, row in sorted(keyed, key=lambda pair: pair[0], reverse=order == "desc")]
    numbers = {row.number for row in having}
    return having + [row for row in rows if row.number not in numbers]


def best_first(rows: Sequence[TrialRow], objective: Objective) -> list[TrialRow]:
    """Sort by score, with repeats by that of the configuration, best first. Trials without a value come last."""
    numbered = {row.number: row for row in rows}
    return [numbered[number] for number in objective.rank({row.number: row.standing for row in rows})]


def fields_to_table(rows: Sequence[TrialRow], fields: Sequence[Field], screen: Screen = WHOLE) -> str:
    """Return the requested fields of the trials as a table for a terminal."""
    columns = []
    for field in fields:
        values = [field.read(row) for row in rows]
        if all(value is ABSENT or isinstance(value, float) for value in values):
            columns.append(Column(field.head, numbers([None if value is ABSENT else value for value in values])))
        else:
            is_text = not all(value is ABSENT or isinstance(value, int) for value in values)
            cells = ["" if value is ABSENT else param_cell(value) for value in values]
            columns.append(Column(field.head, cells, is_text=is_text))
    return table_text(columns, screen, "with --format csv, or in a wider terminal")


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


def _present(read: _Read) -> _Read:
    def found(row: TrialRow) -> Value:
        value = read(row)
        return ABSENT if value is None else value

    return found


def _value(index: int) -> _Read:
    return lambda row: row.values[index] if row.values else ABSENT


def _value_or_nan(index: int, goal: str) -> _Read:
    def found(row: TrialRow) -> Value:
        if row.values:
            return row.values[index]
        is_nan = row.failure is None and math.isnan(row.metrics.get(goal, 0.0))
        return math.nan if is_nan else ABSENT

    return found


def _repeated(column: str, objective: Objective) -> _Read:
    return _present(lambda row: repeat_columns([row], objective)[column][0])


def _param(name: str) -> _Read:
    return lambda row: row.params.get(name, ABSENT)


def _metric(name: str) -> _Read:
    return lambda row: row.metrics.get(name, ABSENT)


def _note(name: str) -> _Read:
    return lambda row: row.notes.get(name, ABSENT)


def _all_of(copies: Sequence[Field]) -> _Read:
    return lambda row: [value for field in copies if (value := field.read(row)) is not ABSENT]
