"""`hpsearch compare`: compare studies."""

from __future__ import annotations

import argparse
from pathlib import Path

from hpsearch.cli.arguments import each_a_study, loaded, target
from hpsearch.errors import HpsearchError
from hpsearch.tables.formats import indented_json


def compare_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch compare`."""
    command.add_argument("dirs", type=Path, nargs="+", metavar="DIR")
    text = "csv: every change of each study's best, with what it had cost"
    command.add_argument("--format", choices=("table", "csv", "json"), default="table", help=text)
    command.add_argument(
        "--plots", type=target, metavar="FOLDER", help="draw the best over trials, iterations and time"
    )


def compare(args: argparse.Namespace) -> int:
    """Compare studies."""
    from hpsearch.results.comparison import compare as compared_with
    from hpsearch.tables import comparison as comparison_tables

    compared = compared_with(*map(loaded, each_a_study("compare", args.dirs)))
    if not any(run.course.changes for run in compared.runs):
        raise HpsearchError("expected studies with values, but no trial of any has one yet; see `hpsearch status`")
    if args.format == "csv":
        print(comparison_tables.courses_csv(compared), end="")
    elif args.format == "json":
        print(indented_json(comparison_tables.comparison_json(compared), ensure_ascii=False))
    else:
        print(compared.text(), end="")
    if args.plots is not None:
        paths = compared.plots(args.plots)
        if args.format == "table":
            print("\nplots: " + ", ".join(map(str, paths)))
    return 0
