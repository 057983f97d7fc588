"""`hpsearch trials`: list all or some trials, in any order, with any columns."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from hpsearch.cli.arguments import add_format, add_study, add_weights, comma_list, directory_of, loaded, positive
from hpsearch.errors import HpsearchError
from hpsearch.objective import Objective
from hpsearch.results.best import no_best, weighted
from hpsearch.results.study import Study
from hpsearch.space.expressions import ABSENT
from hpsearch.tables.formats import csv_text, json_text
from hpsearch.tables.groups import group_columns, groups_of, groups_to_csv, groups_to_json
from hpsearch.tables.layout import screen_of, table_text
from hpsearch.tables.outline import constants_of, outlined
from hpsearch.tables.selection import Fields, best_first, fields_to_table, ordered, where
from hpsearch.tables.trials import (
    rows_to_csv,
    rows_to_json,
    rows_to_table,
    segments_to_csv,
    segments_to_json,
    segments_to_table,
)
from hpsearch.trial import TrialRow


def trials_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch trials`."""
    add_study(command, newest=True, reads=True)
    add_format(command, "csv", "json")
    command.add_argument("--times", action="store_true", help="add each trial's running time in seconds")
    command.add_argument(
        "--metrics", action="store_true", help="add all metrics that were reported last (JSON always has them)"
    )
    text = "add what trials noted with trial.note(...)"
    command.add_argument("--notes", action="store_true", help=text)
    command.add_argument(
        "--segments", action="store_true", help="list every started segment: its width, why, and how it ended"
    )

    text = "only those that no other one is better than, and that keep all constraints"
    command.add_argument("--front", action="store_true", help=text)
    add_weights(command, "the best first, by one number: what a unit of each metric is worth, e.g. accuracy=1,ms=0.01")

    command.add_argument(
        "--where", metavar="EXPRESSION", help="only those for which it holds: 'lr < 0.01 and width > 1'"
    )
    text = "by a column, a parameter or a metric; those that lack it come last"
    command.add_argument("--sort", metavar="NAME[:desc]", help=text)
    text = "the first N, of those that --sort sorts, or else the best"
    command.add_argument("--top", type=positive, metavar="N", help=text)
    text = "group them by a column, a parameter or a metric: how many, the best and the median of each value"
    command.add_argument("--by", metavar="NAME", help=text)
    comma_list(command, "--columns", str, "NAME", "these alone, in this order, of columns, parameters and metrics")


def trials(args: argparse.Namespace) -> int:
    """List the trials, or their segments."""
    _check_together(args)
    study = loaded(directory_of(args))
    if args.segments:
        if args.format == "table":
            text = segments_to_table(study.segments(), screen_of(sys.stdout))
        else:
            text = {"csv": segments_to_csv, "json": segments_to_json}[args.format](study.segments())
    else:
        text = _listed(args, study)
    print(text, end="\n" if args.format == "json" else "")
    return 0


def _check_together(args: argparse.Namespace) -> None:
    """Check that the options are compatible."""
    names = ("front", "weights", "where", "sort", "top", "columns", "metrics", "notes", "by")
    used = [f"--{name}" for name in names if getattr(args, name) not in (None, False)]
    if args.segments and (wrong := [option for option in used if option != "--metrics"]):
        raise HpsearchError(f"--segments: lists those of all trials; leave {' and '.join(wrong)} out")
    if args.by is not None and (wrong := [option for option in used if option not in ("--front", "--where", "--by")]):
        raise HpsearchError(f"--by: lists groups, the one with the best trial first; leave {' and '.join(wrong)} out")
    if args.columns is not None and args.notes:
        raise HpsearchError("--columns: lists these columns alone; write notes.NAME among them, or leave --notes out")
    if args.weights is not None and args.sort is not None:
        raise HpsearchError("--weights: sorts the trials by their worth; leave it or --sort out")


def _listed(args: argparse.Namespace, study: Study) -> str:
    objective, space = study.sweep.objective, study.sweep.parameters
    every = study.trials
    names = space.columns(row.params for row in every)
    fields = Fields(every, names, objective)
    rows, worth = _chosen(args, study, every, fields)
    if args.by is not None:
        return _grouped(args, rows, fields, objective)
    if args.columns is not None:
        chosen = [fields.find(name, "--columns") for name in args.columns]
        if args.format == "table":
            return fields_to_table(rows, chosen, screen_of(sys.stdout))
        values = [[None if (value := field.read(row)) is ABSENT else value for field in chosen] for row in rows]
        named = [field.name for field in chosen]
        return (
            csv_text(named, values)
            if args.format == "csv"
            else json_text(dict(zip(named, cells, strict=True)) for cells in values)
        )
    if args.format == "csv":
        return rows_to_csv(rows, names, args.times, args.metrics, objective, args.notes)
    if args.format == "json":
        return rows_to_json(rows, names, args.times, objective, args.notes)
    shown, heads = outlined(rows, space)
    constants = constants_of(heads, study.spaces)
    screen = screen_of(sys.stdout)
    return rows_to_table(shown, heads, objective, args.times, args.metrics, worth, constants, screen, notes=args.notes)


def _grouped(args: argparse.Namespace, rows: Sequence[TrialRow], fields: Fields, objective: Objective) -> str:
    field = fields.find(args.by, "--by")
    groups = groups_of(rows, field, objective)
    if args.format == "table":
        columns = group_columns(groups, field, objective, args.times)
        return table_text(columns, screen_of(sys.stdout), "with --format csv")
    as_text = {"csv": groups_to_csv, "json": groups_to_json}[args.format]
    return as_text(groups, field, objective, args.times)


def _chosen(
    args: argparse.Namespace, study: Study, every: Sequence[TrialRow], fields: Fields
) -> tuple[Sequence[TrialRow], dict[int, float] | None]:
    """Return the requested trials, in the requested order, and their weighted sums for `--weights`."""
    objective, worth = study.sweep.objective, None
    if args.front and not objective.goals:
        raise no_best(study.directory, objective, study.trials, ())
    rows = [row for row in study.leaders if row.feasible] if args.front else every
    if args.where is not None:
        rows = where(rows, fields, args.where)
    if args.weights is not None:
        worth = weighted(rows, objective, args.weights)
        numbered = {row.number: row for row in rows}
        rows = [numbered[number] for number in sorted(worth, key=lambda number: (-worth[number], number))]
    elif args.sort is not None:
        rows = ordered(rows, fields, args.sort)
    elif args.top is not None:
        rows = best_first(rows, objective)
    return rows[: args.top], worth
