"""`hpsearch list`: the studies of a folder."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hpsearch.cli.arguments import add_format
from hpsearch.config.checks import nearest
from hpsearch.errors import HpsearchError
from hpsearch.results.studies import StudySummary, find_studies, summarize
from hpsearch.tables.formats import csv_text, json_text
from hpsearch.tables.layout import Column, Screen, screen_of, table_text
from hpsearch.tables.wording import bytes_text, duration, number, shortened, shown_path

__all__ = ["list_studies", "list_studies_arguments"]

_NOTE = 40
"""Most letters of a note in the table."""


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
    now = time.time()
    with contextlib.redirect_stdout(sys.stderr):  # what a searcher of one's own prints is no part of the list
        known = summarize(list(find_studies(args.folder)), now)
    known = [one for one in known if set(args.tag).issubset(one.labels.tags)]
    known.sort(key=lambda one: one.changed, reverse=True)
    if args.sort is not None:
        known = _by_column(known, args.sort)
    if args.format == "csv":
        print(_to_csv(known), end="")
    elif args.format == "json":
        print(_to_json(known))
    elif known:
        print(_to_table(known, Path(), screen_of(sys.stdout)), end="")
    else:
        tagged = f" with the tag {' '.join(args.tag)}" if args.tag else ""
        print(f"no study{tagged} in {args.folder}")
    return 0


_KEYS: Mapping[str, Callable[[StudySummary], Any]] = {
    "study": lambda one: str(one.directory),
    "name": lambda one: one.name,
    "state": lambda one: one.state,
    "trials": lambda one: one.trials,
    "best": lambda one: one.value,
    "begun": lambda one: one.begun,
    "changed": lambda one: one.changed,
    "took": lambda one: one.seconds,
    "size": lambda one: one.size,
}


def _by_column(known: Sequence[StudySummary], sort: str) -> list[StudySummary]:
    """Sort by a column, `NAME` or `NAME:desc`; studies without a value come last.

    Raises:
        HpsearchError: There is no such column.
    """
    name, _, order = sort.partition(":")
    if name not in _KEYS or order not in ("", "asc", "desc"):
        raise HpsearchError(f"--sort: must be NAME or NAME:desc of a column, got {sort!r}; {nearest(name, _KEYS)}")
    key = _KEYS[name]
    having = [one for one in known if key(one) is not None and not one.problem]
    having.sort(key=key, reverse=order == "desc")
    return having + [one for one in known if one not in having]


def _to_table(known: Sequence[StudySummary], here: Path, screen: Screen) -> str:
    """Return the studies for a terminal: paths as seen from `here`, times on the local clock."""
    problems = [one for one in known if one.problem]
    columns = [
        Column("study", [shlex.quote(shown_path(one.directory, here)) for one in known], is_text=True, is_kept=True),
        Column("state", [_state(one) for one in known], is_text=True, is_kept=True),
        Column("trials", ["" if one.problem else _trials(one) for one in known]),
        Column("best", [_best(one) for one in known], is_text=True),
        Column("begun", [_clock(one.begun) for one in known]),
        Column("took", ["" if one.problem else duration(one.seconds) for one in known]),
        Column("size", [bytes_text(one.size) for one in known]),
    ]
    if any(one.name not in one.directory.name for one in known):
        columns.append(Column("name", [one.name for one in known], is_text=True))
    if any(one.labels.tags for one in known):
        columns.append(Column("tags", [" ".join(one.labels.tags) for one in known], is_text=True))
    if any(one.labels.note for one in known):
        columns.append(Column("note", [shortened(one.labels.note, _NOTE) for one in known], is_text=True))
    unreadable = "".join(f"{shown_path(one.directory, here)} can't be read: {one.problem}\n" for one in problems)
    return table_text(columns, screen, "with --format csv") + unreadable


def _to_csv(known: Sequence[StudySummary]) -> str:
    r"""Return the studies as CSV with `\n` line ends; tags are separated by spaces."""
    records = [_record(one) for one in known]
    columns = list(_record(StudySummary(Path())))
    rows = [[" ".join(record[name]) if name == "tags" else record[name] for name in columns] for record in records]
    return csv_text(columns, rows)


def _to_json(known: Sequence[StudySummary]) -> str:
    """Return the studies as a JSON array of objects, one on a line."""
    return json_text(map(_record, known))


def _record(one: StudySummary) -> dict[str, Any]:
    return {
        "directory": str(one.directory),
        "name": one.name or None,
        "state": one.state,
        "process": one.holder,
        "trials": None if one.problem else one.trials,
        "total": one.total,
        "metric": one.metric or None,
        "value": one.value,
        "best_trial": one.best_trial,
        "front": one.front or None,
        "begun": _stamp(one.begun),
        "changed": _stamp(one.changed),
        "seconds": None if one.problem else one.seconds,
        "size": one.size,
        "tags": list(one.labels.tags),
        "note": one.labels.note or None,
        "problem": one.problem or None,
    }


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def _state(one: StudySummary) -> str:
    if one.state != "running" or one.holder is None:
        return one.state
    return f"running in {one.holder.rpartition(':')[2]}"


def _trials(one: StudySummary) -> str:
    return str(one.trials) if one.total in (None, one.trials) else f"{one.trials} of {one.total}"


def _best(one: StudySummary) -> str:
    if one.front:
        return f"{one.metric}: a front of {one.front}"
    return "" if one.value is None else f"{one.metric} {number(one.value)}"
