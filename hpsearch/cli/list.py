"""`hpsearch list`: the studies of a folder."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from pathlib import Path

from hpsearch.cli.arguments import add_format
from hpsearch.tables.layout import screen_of

__all__ = ["list_studies", "list_studies_arguments"]


def list_studies_arguments(command: argparse.ArgumentParser) -> None:
    """Add what `hpsearch list` takes."""
    command.add_argument("folder", type=Path, nargs="?", default=Path("runs"), metavar="FOLDER", help="(default: runs)")
    text = "only those with this tag; may be repeated: with all of them"
    command.add_argument("--tag", action="append", default=[], metavar="TAG", help=text)
    text = "study, name, state, trials, best, begun, changed, took or size"
    command.add_argument("--sort", metavar="NAME[:desc]", help=text)
    add_format(command, "csv", "json")


def list_studies(args: argparse.Namespace) -> int:
    """List the studies of a folder, the newest first."""
    from hpsearch.results.studies import find_studies
    from hpsearch.tables.summary import by_column, summaries_to_csv, summaries_to_json, summaries_to_table, summarize

    now = time.time()
    with contextlib.redirect_stdout(sys.stderr):  # what a searcher of one's own prints is no part of the list
        known = summarize(list(find_studies(args.folder)), now)
    known = [one for one in known if set(args.tag).issubset(one.labels.tags)]
    known.sort(key=lambda one: one.changed, reverse=True)
    if args.sort is not None:
        known = by_column(known, args.sort)
    if args.format == "csv":
        print(summaries_to_csv(known), end="")
    elif args.format == "json":
        print(summaries_to_json(known))
    elif known:
        print(summaries_to_table(known, Path(), screen_of(sys.stdout)), end="")
    else:
        tagged = f" with the tag {' '.join(args.tag)}" if args.tag else ""
        print(f"no study{tagged} in {args.folder}")
    return 0
