"""What a trial was trained with, as CSV, as JSON and for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpsearch.results.lineage import Stage
from hpsearch.tables.formats import csv_text, json_text, param_cell
from hpsearch.tables.layout import WHOLE, Column, Screen, table_text
from hpsearch.tables.trials import value_columns
from hpsearch.tables.wording import numbers

__all__ = ["lineage_to_csv", "lineage_to_json", "lineage_to_table"]


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
