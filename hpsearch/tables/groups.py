"""Tables of trials grouped by a parameter or another column, with a line for each value."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from hpsearch.objective import Objective, values_of
from hpsearch.results.study import Study
from hpsearch.space.expressions import ABSENT
from hpsearch.sweep.parallel import STRATEGY
from hpsearch.tables.formats import csv_text, json_text, param_cell
from hpsearch.tables.layout import Column
from hpsearch.tables.selection import best_first
from hpsearch.tables.trial_columns import TrialColumn
from hpsearch.tables.wording import duration, number, numbers
from hpsearch.trial import TrialRow, TrialState, Value


@dataclass(frozen=True, slots=True)
class Group:
    """Statistics of the trials that share a value."""

    value: Value
    """The common value; `ABSENT` for trials without one."""
    trials: int
    failed: int
    asynchronous: bool
    """Whether the results of all trials vary between reruns."""
    best: Sequence[float | None]
    """Best value of each goal among the feasible trials; None if there are none."""
    median: Sequence[float | None]
    """Median value of each goal over the same trials."""
    seconds: float | None
    """Median running time of the trials that ended without failure, in seconds."""


def groups_of(rows: Sequence[TrialRow], field: TrialColumn, objective: Objective) -> list[Group]:
    """Group trials by equal values. Groups are in the order of their best trials.

    Args:
        rows: The trials.
        field: The field to group by.
        objective: The objective.
    """
    groups: dict[str, list[TrialRow]] = {}
    for row in best_first(rows, objective):
        value = field.read(row)
        groups.setdefault("" if value is ABSENT else json.dumps(value, sort_keys=True), []).append(row)
    return [_group(field.read(members[0]), members, objective) for members in groups.values()]


def _group(value: Value, rows: Sequence[TrialRow], objective: Objective) -> Group:
    scored = [values_of(row.standing) for row in rows if objective.is_feasible(row.standing)]
    ended = [row.seconds for row in rows if row.state in (TrialState.COMPLETE, TrialState.STOPPED)]
    columns = list(zip(*scored, strict=True)) if scored else [()] * len(objective.goals)
    pairs = list(zip(objective.goals, columns, strict=True))
    return Group(
        value=value,
        trials=len(rows),
        failed=sum(row.state is TrialState.FAILED for row in rows),
        asynchronous=all(row.asynchronous for row in rows),
        best=[min(values, key=goal.signed, default=None) for goal, values in pairs],
        median=[median(values) if values else None for _, values in pairs],
        seconds=median(ended) if ended else None,
    )


def by_strategy(study: Study) -> list[Column]:
    """Return a table by strategy, with running times; empty if the sweep doesn't search over strategies."""
    sweep = study.sweep
    if len(sweep.strategies.possible) < 2:
        return []
    # Doesn't read the parameter itself, which a condition may make inactive.
    field = TrialColumn(STRATEGY, lambda row: sweep.strategies.of(row.params)["strategy"])
    return group_columns(groups_of(study.trials, field, sweep.objective), field, sweep.objective, times=True)


def group_columns(
    groups: Sequence[Group], field: TrialColumn, objective: Objective, times: bool = False
) -> list[Column]:
    """Return groups as the columns of a table for a terminal.

    Args:
        groups: The groups, in order.
        field: The field that they are grouped by.
        objective: The objective.
        times: Add the running time.
    """
    values = ["" if group.value is ABSENT else param_cell(group.value) for group in groups]
    columns = [
        Column(field.head, values, is_text=True, is_kept=True),
        Column("trials", [str(group.trials) for group in groups]),
    ]
    if any(group.failed for group in groups):
        columns.append(Column("failed", [str(group.failed) for group in groups]))
    for index, goal in enumerate(objective.goals):
        columns.append(Column(f"best {goal.name}", numbers([group.best[index] for group in groups]), is_kept=True))
        medians = [group.median[index] for group in groups]
        columns.append(Column("median", ["" if value is None else number(value) for value in medians]))
    if any(group.asynchronous for group in groups):
        cells = ["yes" if group.asynchronous else "" for group in groups]
        columns.append(Column("asynchronous", cells, is_text=True))
    if times:
        spent = ["" if group.seconds is None else duration(group.seconds) for group in groups]
        columns.append(Column("median time", spent))
    return columns


def groups_to_csv(groups: Sequence[Group], field: TrialColumn, objective: Objective, times: bool = False) -> str:
    r"""Return groups as CSV with `\n` line ends. None becomes an empty field."""
    entries = [_entry(group, field, objective, times) for group in groups]
    return csv_text(entries[0] if entries else [field.name], [list(entry.values()) for entry in entries])


def groups_to_json(groups: Sequence[Group], field: TrialColumn, objective: Objective, times: bool = False) -> str:
    """Return groups as a JSON array of objects, one per line."""
    return json_text(_entry(group, field, objective, times) for group in groups)


def _entry(group: Group, field: TrialColumn, objective: Objective, times: bool) -> dict[str, Value]:
    goals = [goal.name for goal in objective.goals]
    return {
        field.name: None if group.value is ABSENT else group.value,
        "trials": group.trials,
        "failed": group.failed,
        **{f"best.{name}": group.best[index] for index, name in enumerate(goals)},
        **{f"median.{name}": group.median[index] for index, name in enumerate(goals)},
        "asynchronous": group.asynchronous,
        **({"seconds": group.seconds} if times else {}),
    }
