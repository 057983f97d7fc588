"""A study in one line: what `hpsearch list` shows of it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hpsearch.config.checks import nearest
from hpsearch.errors import HpsearchError
from hpsearch.events import Entry
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.filesystem import put_in_place, sizes_beside
from hpsearch.journal.history import RunningTime
from hpsearch.journal.journal import Journal
from hpsearch.journal.labels import Labels, labels_in
from hpsearch.results.studies import last_change
from hpsearch.results.study import study_of
from hpsearch.tables.formats import csv_text, json_text
from hpsearch.tables.layout import WHOLE, Column, Screen, table_text
from hpsearch.tables.wording import bytes_text, duration, number, shortened, shown_path

__all__ = ["StudySummary", "by_column", "summaries_to_csv", "summaries_to_json", "summaries_to_table", "summarize"]

_NOTE = 40
"""Letters of a note that the table shows."""

_SUMMARY = "summary.json"
_LEAST_KEPT = 1 << 20
"""Bytes of a journal whose summary is written beside it: a smaller one is read quickly."""


@dataclass(frozen=True, slots=True)
class StudySummary:
    """What is told of a study, or why it can't be read."""

    directory: Path
    problem: str = ""
    """Why it can't be read; empty where it can."""
    name: str = ""
    """The sweep's."""
    state: str = "unreadable"
    """That of `Study.state`."""
    holder: str | None = None
    """The process that runs it now, `user@host:pid`."""
    trials: int = 0
    total: int | None = None
    """Trials in all, as far as that is known."""
    metric: str = ""
    """What decides, in words."""
    value: float | None = None
    """The best trial's; None where no trial has a value, or several metrics decide."""
    best_trial: int | None = None
    front: int = 0
    """Trials of the front, where several metrics decide."""
    begun: float = 0.0
    """When it was made, in seconds since the epoch."""
    changed: float = 0.0
    """When something happened last."""
    seconds: float = 0.0
    """How long processes ran it, in all."""
    size: int = 0
    """Bytes of its files."""
    labels: Labels = field(default_factory=Labels)


def summarize(paths: Sequence[Path], now: float) -> list[StudySummary]:
    """Tell of each study what one reading of its journal gives; of one that can't be read, why.

    Args:
        paths: The studies' directories.
        now: In seconds since the epoch.
    """
    with sizes_beside(paths) as sizes:
        told = [_summary(path, now) for path in paths]
        return [replace(one, size=size) for one, size in zip(told, sizes(), strict=True)]


def _summary(path: Path, now: float) -> StudySummary:
    """Tell of a study all but its size."""
    place = StudyDirectory(path)
    try:
        holder, stamp = place.holder(), _fingerprint(place)
        if holder is None and (known := _kept(path, stamp)) is not None:
            return known
        with Journal.read(place.journal) as journal:
            record = journal.study()
            watch, is_live = _Watch(), lambda: (holder or place.holder()) is not None
            study = study_of(path, record, watch.over(journal.entries()), is_live, lambda: iter(()))
            labels = labels_in(journal.all_requests())
    except HpsearchError as error:
        text = str(error).removeprefix(f"{place.path}: ").removeprefix(f"{place.journal}: ")
        return StudySummary(path, text, changed=_made(path), begun=_made(path))
    objective, leaders = study.sweep.objective, [row for row in study.leaders if row.feasible]
    single = leaders[0] if leaders and not objective.several else None
    running = max(0.0, now - watch.last) if watch.last is not None and study.state == "running" else 0.0
    summary = StudySummary(
        directory=path,
        name=study.sweep.name,
        state=study.state,
        holder=holder,
        trials=study.count,
        total=None if study.total is None else study.total[0],
        metric=objective.title,
        value=None if single is None else single.value,
        best_trial=None if single is None else single.number,
        front=len(leaders) if objective.several else 0,
        begun=study.created,
        changed=last_change(path, watch.last, study.created),
        seconds=watch.seconds + running,
        labels=labels,
    )
    if holder is None and study.state != "running" and stamp == _fingerprint(place):
        _keep(summary, stamp)
    return summary


def _fingerprint(place: StudyDirectory) -> list[tuple[int, int, int]]:
    """Return (inode, bytes, time of the last change in ns) of the journal's files that hold something."""
    paths = (place.journal, place.journal.with_name(f"{place.journal.name}-wal"))
    found = [path.stat() for path in paths if path.exists()]
    return [(one.st_ino, one.st_size, one.st_mtime_ns) for one in found if one.st_size]


def _keep(summary: StudySummary, stamp: list[tuple[int, int, int]]) -> None:
    """Write the summary of a study with a large journal beside it, where that may be written."""
    if sum(size for _, size, _ in stamp) >= _LEAST_KEPT:
        record = {"version": version("hpsearch"), "journal": stamp, "summary": asdict(summary)}
        with suppress(OSError):
            put_in_place(json.dumps(record, default=str).encode(), summary.directory / _SUMMARY)


def _kept(path: Path, stamp: list[tuple[int, int, int]]) -> StudySummary | None:
    """Return the summary that is written beside a journal, if the journal is the same as then."""
    try:
        record = json.loads((path / _SUMMARY).read_bytes())
        if (record["version"], record["journal"]) != (version("hpsearch"), list(map(list, stamp))):
            return None
        summary = record["summary"]
        labels = Labels(**{**summary["labels"], "tags": tuple(summary["labels"]["tags"])})
        return StudySummary(**{**summary, "directory": path, "labels": labels})
    except (OSError, ValueError, KeyError, TypeError):
        return None


class _Watch:
    """Sees entries pass by: when the newest one was written, and how long the study ran."""

    def __init__(self) -> None:
        self.last: float | None = None
        self._running = RunningTime()

    @property
    def seconds(self) -> float:
        return self._running.seconds

    def over(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        for entry in entries:
            self._running.take(entry)
            self.last = entry.time
            yield entry


def _made(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


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


def by_column(known: Sequence[StudySummary], sort: str) -> list[StudySummary]:
    """Sort by a column, `NAME` or `NAME:desc`; those that have nothing there come last.

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


def summaries_to_table(known: Sequence[StudySummary], here: Path, screen: Screen = WHOLE) -> str:
    """Give the studies for a terminal: paths as seen from `here`, times on the local clock."""
    problems = [one for one in known if one.problem]
    columns = [
        Column("study", [shlex.quote(shown_path(one.directory, here)) for one in known], is_text=True, is_kept=True),
        Column("state", [_told_state(one) for one in known], is_text=True, is_kept=True),
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
    told = "".join(f"{shown_path(one.directory, here)} can't be read: {one.problem}\n" for one in problems)
    return table_text(columns, screen, "with --format csv") + told


def summaries_to_csv(known: Sequence[StudySummary]) -> str:
    r"""Give the studies as CSV with `\n` line ends; tags are separated by spaces."""
    records = [_record(one) for one in known]
    columns = list(_record(StudySummary(Path())))
    rows = [[" ".join(record[name]) if name == "tags" else record[name] for name in columns] for record in records]
    return csv_text(columns, rows)


def summaries_to_json(known: Sequence[StudySummary]) -> str:
    """Give the studies as a JSON array of objects, one on a line."""
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


def _told_state(one: StudySummary) -> str:
    if one.state != "running" or one.holder is None:
        return one.state
    return f"running in {one.holder.rpartition(':')[2]}"


def _trials(one: StudySummary) -> str:
    return str(one.trials) if one.total in (None, one.trials) else f"{one.trials} of {one.total}"


def _best(one: StudySummary) -> str:
    if one.front:
        return f"{one.metric}: a front of {one.front}"
    return "" if one.value is None else f"{one.metric} {number(one.value)}"
