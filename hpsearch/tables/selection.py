"""Fields of a trial, by which trials are filtered, sorted and shown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hpsearch.config.checks import InvalidKey, nearest
from hpsearch.errors import HpsearchError
from hpsearch.objective import Objective
from hpsearch.space.expressions import ABSENT, Expression, Uncomputable
from hpsearch.tables.layout import WHOLE, Column, Screen, table_text
from hpsearch.tables.trial_columns import OWN, Read, TrialColumn, sort_key, trial_columns
from hpsearch.trial import TrialRow, TrialState


class Fields:
    """All fields of a study's trials.

    Args:
        rows: All trials of the study.
        params: Flat names of their params.
        objective: The objective.
    """

    def __init__(self, rows: Sequence[TrialRow], params: Sequence[str], objective: Objective) -> None:
        self.state = OWN["state"]
        self._by_name = trial_columns(rows, params, objective)
        prefixes = ("value", "params.", "metrics.", "notes.")
        own = {name: field for name, field in self._by_name.items() if not name.startswith(prefixes)}
        self._meant = {f"trial.{name}": [field] for name, field in own.items()}
        for field in self._by_name.values():
            self._meant.setdefault(field.name, []).append(field)
        for field in self._by_name.values():
            meanings = self._meant.setdefault(field.head, [])
            # The objective's metrics are also reported: without a prefix, their names mean the trial's value.
            judged = field.name.startswith("metrics.") and any(other.reported for other in meanings)
            if field not in meanings and not judged:
                meanings.append(field)

    def find(self, name: str, option: str) -> TrialColumn:
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

    def copies(self, name: str) -> list[TrialColumn]:
        """Return the fields of params that match a name with `*` in place of numbers."""
        pattern = re.compile(re.escape(name).replace(r"\*", r"\d+"))
        return [
            field
            for field in self._by_name.values()
            if pattern.fullmatch(field.name) or (field.name.startswith("params.") and pattern.fullmatch(field.head))
        ]

    def _unmistakable(self, field: TrialColumn) -> str:
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
    readers: dict[str, Read] = {}
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


def fields_to_table(rows: Sequence[TrialRow], fields: Sequence[TrialColumn], screen: Screen = WHOLE) -> str:
    """Return the requested fields of the trials as a table for a terminal."""
    columns = []
    for field in fields:
        kinds = {type(value) for row in rows if (value := field.read(row)) is not ABSENT}
        is_text = not (kinds <= {float} or kinds <= {int, bool})
        columns.append(Column(field.head, field.cells(rows), is_text=is_text))
    return table_text(columns, screen, "with --format csv, or in a wider terminal")


def _all_of(copies: Sequence[TrialColumn]) -> Read:
    return lambda row: [value for field in copies if (value := field.read(row)) is not ABSENT]
