"""The command that shows all that is known of one trial."""

from __future__ import annotations

import argparse
import json
import sys

from hpsearch.cli.arguments import add_format, add_trial, number
from hpsearch.cli.which_study import loaded, pasted, trial_of
from hpsearch.tables.formats import strict_json
from hpsearch.tables.layout import screen_of
from hpsearch.tables.trial_page import page_lines, page_record, trial_page

__all__ = ["trial", "trial_arguments"]


def trial_arguments(command: argparse.ArgumentParser) -> None:
    """Add what `hpsearch trial` takes."""
    add_trial(command, "(default: the best one)")
    text = "lines of its log (default: %(default)s)"
    command.add_argument("--tail", type=number, default=10, metavar="N", help=text)
    add_format(command, "json")


def trial(args: argparse.Namespace) -> int:
    """Show a trial: the named one, or the best one."""
    directory, named = trial_of(args)
    study = loaded(directory)
    page = trial_page(study, study.row(named).number)
    if args.format == "json":
        print(json.dumps(strict_json(page_record(page, args.tail)), indent=2, allow_nan=False))
        return 0
    for line in page_lines(page, pasted(directory), args.tail, screen_of(sys.stdout)):
        print(line)
    return 0
