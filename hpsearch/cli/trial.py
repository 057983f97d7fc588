"""Commands for one trial: `trial` shows all its data, `lineage` the params of its training, with its ancestors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from hpsearch.cli.arguments import add_format, add_trial, loaded, number, pasted, trial_of
from hpsearch.results.over_time import Stage
from hpsearch.tables.formats import csv_text, indented_json, json_text, param_cells
from hpsearch.tables.layout import WHOLE, Column, Screen, screen_of, table_text
from hpsearch.tables.outline import constants_of
from hpsearch.tables.trial_columns import value_columns
from hpsearch.tables.trial_page import page_lines, page_record, trial_page
from hpsearch.tables.wording import numbers


def trial_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch trial`."""
    add_trial(command, "(default: the best one)", reads=True)
    text = "lines of its log (default: %(default)s)"
    command.add_argument("--tail", type=number, default=10, metavar="N", help=text)
    add_format(command, "json")


def trial(args: argparse.Namespace) -> int:
    """Show the given trial, or the best one."""
    directory, named = trial_of(args)
    study = loaded(directory)
    page = trial_page(study, study.row(named).number)
    if args.format == "json":
        print(indented_json(page_record(page, args.tail)))
        return 0
    for line in page_lines(page, pasted(directory), args.tail, screen_of(sys.stdout)):
        print(line)
    return 0


def lineage_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch lineage`."""
    add_trial(command, "(default: the best one)", reads=True)
    add_format(command, "csv", "json")


def lineage(args: argparse.Namespace) -> int:
    """Show the stages of a trial's training, with its ancestors' params and its own."""
    directory, trial = trial_of(args)
    study = loaded(directory)
    stages, names = study.lineage(trial), study.names
    metrics = [goal.name for goal in study.sweep.objective.goals]
    if args.format == "csv":
        text = lineage_to_csv(stages, names, metrics)
    elif args.format == "json":
        text = lineage_to_json(stages, names, metrics) + "\n"
    else:
        constants = constants_of(names, study.spaces)
        text = lineage_to_table(stages, names, metrics, constants, screen_of(sys.stdout))
    print(text, end="")
    return 0


def lineage_to_csv(stages: Sequence[Stage], names: Sequence[str], metrics: Sequence[str]) -> str:
    r"""Return the stages as CSV with `\n` line ends: `trial,start,end,value,params.<name>...`.

    With several goals, `values.<name>` replace `value`.
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
    """Return the stages as a JSON array, one object per line. With several goals, `values` replaces `value`."""
    return json_text(
        {
            "trial": stage.trial,
            "start": stage.start,
            "end": stage.end,
            **_value_record(stage, metrics),
            "params": {name: stage.params[name] for name in names if name in stage.params},
        }
        for stage in stages
    )


def lineage_to_table(
    stages: Sequence[Stage],
    names: Sequence[str],
    metrics: Sequence[str],
    constants: Sequence[str] = (),
    screen: Screen = WHOLE,
) -> str:
    """Return the stages as a table for a terminal. `constants` are params that the sweep doesn't vary."""
    columns = [
        Column("trial", [str(stage.trial) for stage in stages], is_kept=True),
        Column("start", [str(stage.start) for stage in stages]),
        Column("end", [str(stage.end) for stage in stages]),
        *(Column(name, numbers([stage.values.get(name) for stage in stages]), is_kept=True) for name in metrics),
    ]
    for name in names:
        cells = param_cells(name, (stage.params for stage in stages))
        columns.append(Column(name, cells, is_text=True, is_constant=name in constants))
    return table_text(columns, screen, "with --format csv")


def _value_record(stage: Stage, metrics: Sequence[str]) -> dict[str, Any]:
    if len(metrics) > 1:
        return {"values": {name: stage.values[name] for name in metrics if name in stage.values}}
    return {"value": _cells(stage, metrics)[0]}


def _cells(stage: Stage, metrics: Sequence[str]) -> list[float | None]:
    """Return a value for each value column. There is one such column even if the sweep has no metric."""
    return [stage.values.get(name) for name in metrics] or [None]
