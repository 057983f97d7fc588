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

from hpsearch.cli.arguments import add_format, copied
from hpsearch.config.checks import nearest
from hpsearch.errors import HpsearchError
from hpsearch.journal.directory import StudyDirectory
from hpsearch.results.studies import StudySummary, find_studies, summarize
from hpsearch.storage.bucket import is_url
from hpsearch.tables.formats import csv_text, json_text
from hpsearch.tables.layout import Column, Screen, screen_of, table_text
from hpsearch.tables.wording import bytes_text, duration, number, shortened, shown_path

_NOTE = 40
"""Maximum number of characters of a note in the table."""


def list_studies_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch list`."""
    command.add_argument(
        "folder", type=_folder, nargs="?", default=Path("runs"), metavar="FOLDER", help="(default: runs)"
    )
    text = "only those with this tag; may be repeated: with all of them"
    command.add_argument("--tag", action="append", default=[], metavar="TAG", help=text)
    text = "study, name, state, trials, best, begun, changed, took or size"
    command.add_argument("--sort", metavar="NAME[:desc]", help=text)
    add_format(command, "csv", "json")


def list_studies(args: argparse.Namespace) -> int:
    """List the studies of a folder, the newest first."""
    now = time.time()
    with contextlib.redirect_stdout(sys.stderr):  # output of a user's searcher isn't part of the list
        if is_url(args.folder):
            from hpsearch.storage.studies import studies_in

            directories = [copied(url) for url in studies_in(args.folder)]
        else:
            directories = list(find_studies(args.folder))
        summaries = summarize(directories, now)
    summaries = [study for study in summaries if set(args.tag).issubset(study.labels.tags)]
    summaries.sort(key=lambda study: study.changed, reverse=True)
    if args.sort is not None:
        summaries = _by_column(summaries, args.sort)
    if args.format == "csv":
        print(_to_csv(summaries), end="")
    elif args.format == "json":
        print(_to_json(summaries))
    elif summaries:
        print(_to_table(summaries, Path(), screen_of(sys.stdout)), end="")
    else:
        tagged = f" with the tag {' '.join(args.tag)}" if args.tag else ""
        print(f"no study{tagged} in {args.folder}")
    return 0


def _folder(text: str) -> Path | str:
    """Parse a folder's path, or the URL of a folder in a bucket."""
    return text if is_url(text) else Path(text)


def _location(study: StudySummary) -> Path | str:
    """Return the study's directory, or of a copy the URL of the study in the bucket."""
    return StudyDirectory(study.directory).copied_from() or study.directory


def _shown(study: StudySummary, here: Path) -> str:
    location = _location(study)
    return location if isinstance(location, str) else shown_path(location, here)


_KEYS: Mapping[str, Callable[[StudySummary], Any]] = {
    "study": lambda study: str(_location(study)),
    "name": lambda study: study.name,
    "state": lambda study: study.state,
    "trials": lambda study: study.trials,
    "best": lambda study: study.value,
    "begun": lambda study: study.begun,
    "changed": lambda study: study.changed,
    "took": lambda study: study.seconds,
    "size": lambda study: study.size,
}


def _by_column(summaries: Sequence[StudySummary], sort: str) -> list[StudySummary]:
    """Sort by a column, given as `NAME` or `NAME:desc`. Studies without a value come last.

    Raises:
        HpsearchError: There is no such column.
    """
    name, _, order = sort.partition(":")
    if name not in _KEYS or order not in ("", "asc", "desc"):
        raise HpsearchError(f"--sort: must be NAME or NAME:desc of a column, got {sort!r}; {nearest(name, _KEYS)}")
    key = _KEYS[name]
    having = [study for study in summaries if key(study) is not None and not study.problem]
    having.sort(key=key, reverse=order == "desc")
    return having + [study for study in summaries if study not in having]


def _to_table(summaries: Sequence[StudySummary], here: Path, screen: Screen) -> str:
    """Return the studies as a table for a terminal, with paths relative to `here` and local times."""
    problems = [study for study in summaries if study.problem]
    columns = [
        Column("study", [shlex.quote(_shown(study, here)) for study in summaries], is_text=True, is_kept=True),
        Column("state", [_state(study) for study in summaries], is_text=True, is_kept=True),
        Column("trials", ["" if study.problem else _trials(study) for study in summaries]),
        Column("best", [_best(study) for study in summaries], is_text=True),
        Column("begun", [_clock(study.begun) for study in summaries]),
        Column("took", ["" if study.problem else duration(study.seconds) for study in summaries]),
        Column("size", [bytes_text(study.size) for study in summaries]),
    ]
    if any(study.name not in study.directory.name for study in summaries):
        columns.append(Column("name", [study.name for study in summaries], is_text=True))
    if any(study.labels.tags for study in summaries):
        columns.append(Column("tags", [" ".join(study.labels.tags) for study in summaries], is_text=True))
    if any(study.labels.note for study in summaries):
        columns.append(Column("note", [shortened(study.labels.note, _NOTE) for study in summaries], is_text=True))
    unreadable = "".join(f"{_shown(study, here)} can't be read: {study.problem}\n" for study in problems)
    return table_text(columns, screen, "with --format csv") + unreadable


def _to_csv(summaries: Sequence[StudySummary]) -> str:
    r"""Return the studies as CSV with `\n` line ends; tags are separated by spaces."""
    records = [_record(study) for study in summaries]
    columns = list(_record(StudySummary(Path())))
    rows = [[" ".join(record[name]) if name == "tags" else record[name] for name in columns] for record in records]
    return csv_text(columns, rows)


def _to_json(summaries: Sequence[StudySummary]) -> str:
    """Return the studies as a JSON array, one object per line."""
    return json_text(map(_record, summaries))


def _record(study: StudySummary) -> dict[str, Any]:
    return {
        "directory": str(_location(study)),
        "name": study.name or None,
        "state": study.state,
        "process": study.holder,
        "trials": None if study.problem else study.trials,
        "total": study.total,
        "metric": study.metric or None,
        "value": study.value,
        "best_trial": study.best_trial,
        "front": study.front or None,
        "begun": _stamp(study.begun),
        "changed": _stamp(study.changed),
        "seconds": None if study.problem else study.seconds,
        "size": study.size,
        "tags": list(study.labels.tags),
        "note": study.labels.note or None,
        "problem": study.problem or None,
    }


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def _state(study: StudySummary) -> str:
    if study.state != "running" or study.holder is None or isinstance(_location(study), str):
        return study.state
    return f"running in {study.holder.rpartition(':')[2]}"


def _trials(study: StudySummary) -> str:
    return str(study.trials) if study.total in (None, study.trials) else f"{study.trials} of {study.total}"


def _best(study: StudySummary) -> str:
    if study.front:
        return f"{study.metric}: a front of {study.front}"
    return "" if study.value is None else f"{study.metric} {number(study.value)}"
