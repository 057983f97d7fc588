"""The studies of a folder: their directories, the newest study, and a summary of each."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

from hpsearch.errors import HpsearchError, JournalError
from hpsearch.events import Entry
from hpsearch.journal.directory import JOURNAL, StudyDirectory
from hpsearch.journal.filesystem import put_in_place, size_of
from hpsearch.journal.history import RunningTime
from hpsearch.journal.journal import Journal
from hpsearch.journal.labels import Labels, labels_in
from hpsearch.results.study import study_of

_SUMMARY = "summary.json"
_LEAST_KEPT = 1 << 20
"""Smallest journal, in bytes, whose summary is cached in a file. Smaller journals are read quickly."""


def find_studies(folder: Path) -> Iterator[Path]:
    """Return the directories of studies in a folder, recursively, except within studies and hidden folders.

    A study with several paths, because of links, appears once.

    Raises:
        JournalError: The folder doesn't exist or can't be read.
    """
    if not folder.is_dir():
        raise JournalError(f"{folder}: expected a folder with studies, but there is none. Name the folder they are in.")

    def refuse(error: OSError) -> None:
        if error.filename == str(folder):  # subfolders without permission are skipped
            raise JournalError(f"{folder}: expected a folder that can be read, got: {error.strerror}.") from error

    visited: set[tuple[int, int]] = set()
    for here, folders, files in os.walk(folder, onerror=refuse, followlinks=True):
        try:
            status = Path(here).stat()
        except FileNotFoundError:  # deleted since it was listed
            folders.clear()
            continue
        is_new = (status.st_dev, status.st_ino) not in visited
        visited.add((status.st_dev, status.st_ino))
        is_study = JOURNAL in (*files, *folders)
        if is_new and is_study:
            yield Path(here)
        folders[:] = sorted(name for name in folders if is_new and not is_study and not name.startswith("."))


def written(path: Path) -> float:
    """Return the modification time of a study's journal, in seconds since the epoch."""
    times = []
    for name in (JOURNAL, f"{JOURNAL}-wal"):
        try:
            times.append((path / name).stat().st_mtime)
        except OSError:
            continue
    return max(times, default=0.0)


def last_change(path: Path, event: float | None, created: float) -> float:
    """Return the time of a study's last activity.

    This is the time of the newest event. The journal's modification time isn't used, as tags, notes and even readers
    change it. Only if the event's time is later, as in a simulation, the modification time counts.
    """
    return min(created if event is None else event, written(path))


def newest_study(folder: Path, say: Callable[[str], None]) -> Path:
    """Return the study with the latest activity.

    Args:
        folder: Folder of studies.
        say: Called with a message about each study that can't be read.

    Raises:
        JournalError: There is no study.
    """
    candidates = (
        sorted(((written(path), path) for path in find_studies(folder)), reverse=True) if folder.is_dir() else []
    )
    best: tuple[float, Path] | None = None
    for latest, path in candidates:
        if best is not None and best[0] >= latest:
            break  # the remaining journals were modified earlier, so they have no newer events
        try:
            with Journal.read(path / JOURNAL) as journal:
                event = journal.last_time()
                created = 0.0 if event is not None else float(journal.study().get("created", 0.0))
        except HpsearchError as error:
            say(f"{path} is passed over: {error}")
            continue
        when = last_change(path, event, created)
        if best is None or when > best[0]:
            best = when, path
    if best is None:
        raise JournalError(
            f"{folder}: without a directory, the newest study in this folder is used, but there is none. Name the "
            "directory that `hpsearch run` printed."
        )
    return best[1]


@dataclass(frozen=True, slots=True)
class StudySummary:
    """A summary of a study, or why the study can't be read."""

    directory: Path
    problem: str = ""
    """Why the study can't be read; empty if it can."""
    name: str = ""
    """Name of the sweep."""
    state: str = "unreadable"
    """State of the study; see `Study.state`."""
    holder: str | None = None
    """Process that runs the study now, as `user@host:pid`; None if none does."""
    trials: int = 0
    total: int | None = None
    """Total number of trials; None if unknown."""
    metric: str = ""
    """Description of the objective."""
    value: float | None = None
    """Value of the best trial; None if no trial has a value, or if there are several goals."""
    best_trial: int | None = None
    front: int = 0
    """Number of trials of the Pareto front, if there are several goals."""
    begun: float = 0.0
    """Time of the study's creation, in seconds since the epoch."""
    changed: float = 0.0
    """Time of the last activity, in seconds since the epoch."""
    seconds: float = 0.0
    """Total running seconds of all processes."""
    size: int = 0
    """Size of the study's files, in bytes."""
    labels: Labels = field(default_factory=Labels)


def summarize(paths: Sequence[Path], now: float) -> list[StudySummary]:
    """Return a summary of each study. Each journal is read once.

    Args:
        paths: The studies' directories.
        now: Current time, in seconds since the epoch.
    """
    from concurrent.futures import ProcessPoolExecutor  # the other functions are needed by commands that must be quick
    from multiprocessing import get_context

    # In another process: a thread would wait for the GIL at each of thousands of short calls.
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        sizes = pool.map(size_of, [[path] for path in paths])
        summaries = [_summary(path, now) for path in paths]
        return [replace(summary, size=size) for summary, size in zip(summaries, sizes, strict=True)]


def _summary(path: Path, now: float) -> StudySummary:
    """Return the summary of a study, without its size."""
    study_dir = StudyDirectory(path)
    try:
        holder, stamp = study_dir.holder(), fingerprint(study_dir)
        if holder is None and (cached := _cached_summary(path, stamp)) is not None:
            return cached
        with Journal.read(study_dir.journal) as journal:
            record = journal.study()
            watch, is_live = _Watch(), lambda: (holder or study_dir.holder()) is not None
            study = study_of(path, record, watch.over(journal.entries()), is_live, lambda: iter(()))
            labels = labels_in(journal.all_requests())
    except HpsearchError as error:
        text = str(error).removeprefix(f"{study_dir.path}: ").removeprefix(f"{study_dir.journal}: ")
        return StudySummary(path, text, changed=_created_at(path), begun=_created_at(path))
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
    if holder is None and study.state != "running" and stamp == fingerprint(study_dir):
        _keep(summary, stamp)
    return summary


def fingerprint(study_dir: StudyDirectory) -> list[tuple[int, int, int]]:
    """Return (inode, size in bytes, modification time in ns) of the journal's files that aren't empty."""
    paths = (study_dir.journal, study_dir.journal.with_name(f"{study_dir.journal.name}-wal"))
    stats = [path.stat() for path in paths if path.exists()]
    return [(status.st_ino, status.st_size, status.st_mtime_ns) for status in stats if status.st_size]


def _keep(summary: StudySummary, stamp: list[tuple[int, int, int]]) -> None:
    """Cache the summary of a study with a large journal in its directory, if that is writable."""
    if sum(size for _, size, _ in stamp) >= _LEAST_KEPT:
        record = {"version": version("hpsearch"), "journal": stamp, "summary": asdict(summary)}
        with suppress(OSError):
            put_in_place(json.dumps(record, default=str).encode(), summary.directory / _SUMMARY)


def _cached_summary(path: Path, stamp: list[tuple[int, int, int]]) -> StudySummary | None:
    """Return the cached summary of a study, if the journal hasn't changed since."""
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
    """Records the time of the newest entry and the study's running time while entries are iterated."""

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


def _created_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
