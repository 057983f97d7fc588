"""The command that lists trials: all or some of them, in any order, with any columns."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from hpsearch.cli.which_study import directory_of, loaded
from hpsearch.errors import HpsearchError
from hpsearch.objective import Objective
from hpsearch.results.best import no_best, weighted
from hpsearch.results.study import Study
from hpsearch.space.expressions import ABSENT
from hpsearch.tables.formats import csv_text, json_text
from hpsearch.tables.groups import group_columns, groups_of, groups_to_csv, groups_to_json
from hpsearch.tables.layout import screen_of, table_text
from hpsearch.tables.outline import constants_of, outlined
from hpsearch.tables.segments import segments_to_csv, segments_to_json, segments_to_table
from hpsearch.tables.selection import Fields, best_first, ordered, where
from hpsearch.tables.trial_table import fields_to_table, rows_to_table
from hpsearch.tables.trials import rows_to_csv, rows_to_json
from hpsearch.trial import TrialRow

__all__ = ["trials"]


def trials(given: argparse.Namespace) -> int:
    """List the trials, or their segments."""
    _check_together(given)
    study = loaded(directory_of(given))
    if given.segments:
        if given.format == "table":
            text = segments_to_table(study.segments(), screen_of(sys.stdout))
        else:
            text = {"csv": segments_to_csv, "json": segments_to_json}[given.format](study.segments())
    else:
        text = _listed(given, study)
    print(text, end="\n" if given.format == "json" else "")
    return 0


def _check_together(given: argparse.Namespace) -> None:
    """Check that options are given which can stand together."""
    asked = {
        "--front": given.front,
        "--weights": given.weights is not None,
        "--where": given.where is not None,
        "--sort": given.sort is not None,
        "--top": given.top is not None,
        "--columns": given.columns is not None,
        "--metrics": given.metrics,
        "--by": given.by is not None,
    }
    named = [option for option, is_there in asked.items() if is_there]
    if given.segments and (others := [option for option in named if option != "--metrics"]):
        raise HpsearchError(f"--segments: lists those of all trials; leave {' and '.join(others)} out")
    if given.by is not None and (others := [one for one in named if one not in ("--front", "--where", "--by")]):
        raise HpsearchError(f"--by: lists groups, the one with the best trial first; leave {' and '.join(others)} out")
    if given.weights is not None and given.sort is not None:
        raise HpsearchError("--weights: sorts the trials by their worth; leave it or --sort out")


def _listed(given: argparse.Namespace, study: Study) -> str:
    objective, space = study.sweep.objective, study.sweep.parameters
    every = study.trials
    names = space.columns(row.params for row in every)
    fields = Fields(every, names, objective)
    rows, worth = _chosen(given, study, every, fields)
    if given.by is not None:
        return _grouped(given, rows, fields, objective)
    if given.columns is not None:
        chosen = [fields.find(name, "--columns") for name in given.columns]
        if given.format == "table":
            return fields_to_table(rows, chosen, screen_of(sys.stdout))
        values = [[None if (value := one.read(row)) is ABSENT else value for one in chosen] for row in rows]
        named = [one.name for one in chosen]
        return (
            csv_text(named, values)
            if given.format == "csv"
            else json_text(dict(zip(named, cells, strict=True)) for cells in values)
        )
    if given.format == "csv":
        return rows_to_csv(rows, names, given.times, given.metrics, objective)
    if given.format == "json":
        return rows_to_json(rows, names, given.times, objective)
    shown, heads = outlined(rows, space)
    constants = constants_of(heads, space)
    return rows_to_table(shown, heads, objective, given.times, given.metrics, worth, constants, screen_of(sys.stdout))


def _grouped(given: argparse.Namespace, rows: Sequence[TrialRow], fields: Fields, objective: Objective) -> str:
    field = fields.find(given.by, "--by")
    groups = groups_of(rows, field, objective)
    if given.format == "table":
        columns = group_columns(groups, field, objective, given.times)
        return table_text(columns, screen_of(sys.stdout), "with --format csv")
    as_text = {"csv": groups_to_csv, "json": groups_to_json}[given.format]
    return as_text(groups, field, objective, given.times)


def _chosen(
    given: argparse.Namespace, study: Study, every: Sequence[TrialRow], fields: Fields
) -> tuple[Sequence[TrialRow], dict[int, float] | None]:
    """Give the trials that are asked for, in the order that is asked for, and their worth by `--weights`."""
    objective, worth = study.sweep.objective, None
    if given.front and not objective.goals:
        raise no_best(study.directory, objective, study.trials, ())
    rows = [row for row in study.leaders if row.feasible] if given.front else every
    if given.where is not None:
        rows = where(rows, fields, given.where)
    if given.weights is not None:
        worth = weighted(rows, objective, given.weights)
        numbered = {row.number: row for row in rows}
        rows = [numbered[number] for number in sorted(worth, key=lambda number: (-worth[number], number))]
    elif given.sort is not None:
        rows = ordered(rows, fields, given.sort)
    elif given.top is not None:
        rows = best_first(rows, objective)
    return rows[: given.top], worth
