"""What a trial was trained with: its ancestors, from which to which iteration, and their params."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpsearch.report.layout import WHOLE, Column, Screen, table_text
from hpsearch.report.tables import csv_text, json_text, param_cell, value_columns
from hpsearch.report.wording import numbers
from hpsearch.trial import Params, TrialRow

__all__ = ["Stage", "lineage", "lineage_to_csv", "lineage_to_json", "lineage_to_table"]


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of a training, with the params of one trial."""

    trial: int
    start: int
    """Iterations that were done when it began."""
    end: int
    """Its last iteration: where its fork began, or as far as the trial came."""
    values: Mapping[str, float]
    """The metrics that decide, at `end`, NaN where that was reported; those that weren't reported aren't there."""
    params: Params


def lineage(
    rows: Sequence[TrialRow], trial: int, curves: Mapping[int, Iterable[tuple[int, Mapping[str, float]]]]
) -> tuple[Stage, ...]:
    """Give the stages of a trial's training, the first ancestor's first.

    Where nothing was taken over from a parent, since it had no checkpoint, training began with the fork itself. A child
    that inherited weights counts its iterations from 0 again.

    Args:
        rows: All trials, by number.
        trial: The last one's number.
        curves: Trial to (iteration, metrics that decide) of what was reported.
    """
    stages: list[Stage] = []
    row, end = rows[trial], rows[trial].iterations
    while True:
        values = dict(curves.get(row.number, ())).get(end, {})
        stages.append(Stage(row.number, row.start, end, values, row.params))
        if row.parent is None or row.inherited is None:
            return tuple(reversed(stages))
        end, row = row.inherited, rows[row.parent]


def lineage_to_csv(stages: Sequence[Stage], names: Sequence[str], metrics: Sequence[str]) -> str:
    r"""Give the stages as CSV with `\n` line ends: `trial,start,end,value,params.<name>...`.

    Where several metrics decide, `values.<name>` stand in place of `value`.
    """
    columns = ["trial", "start", "end", *value_columns(metrics), *(f"params.{name}" for name in names)]
    return csv_text(
        columns,
        [
            [stage.trial, stage.start, stage.end, *_cells(stage, metrics), *map(stage.params.get, names)]
            for stage in stages
        ],
    )


def lineage_to_json(stages: Sequence[Stage], names: Sequence[str], metrics: Sequence[str]) -> str:
    """Give the stages as a JSON array of objects, one on a line, with `values` where several metrics decide."""
    entries = []
    for stage in stages:
        params = {name: stage.params[name] for name in names if name in stage.params}
        entries.append(
            {"trial": stage.trial, "start": stage.start, "end": stage.end, **_told(stage, metrics), "params": params}
        )
    return json_text(entries)


def lineage_to_table(
    stages: Sequence[Stage],
    names: Sequence[str],
    metrics: Sequence[str],
    constants: Sequence[str] = (),
    screen: Screen = WHOLE,
) -> str:
    """Give the stages for a terminal; `constants` are the params that the sweep doesn't vary."""
    columns = [
        Column("trial", [str(stage.trial) for stage in stages], is_kept=True),
        Column("start", [str(stage.start) for stage in stages]),
        Column("end", [str(stage.end) for stage in stages]),
        *(Column(name, numbers([stage.values.get(name) for stage in stages]), is_kept=True) for name in metrics),
    ]
    for name in names:
        cells = [param_cell(stage.params[name]) if name in stage.params else "" for stage in stages]
        columns.append(Column(name, cells, is_text=True, is_constant=name in constants))
    return table_text(columns, screen, "with --format csv")


def _told(stage: Stage, metrics: Sequence[str]) -> dict[str, Any]:
    if len(metrics) > 1:
        return {"values": {name: stage.values[name] for name in metrics if name in stage.values}}
    return {"value": _cells(stage, metrics)[0]}


def _cells(stage: Stage, metrics: Sequence[str]) -> list[float | None]:
    """Give a value for each column of values, of which there is one where the sweep names no metric, too."""
    return [stage.values.get(name) for name in metrics] or [None]
