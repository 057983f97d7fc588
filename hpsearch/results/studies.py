"""The studies of a folder: where they lie, and which one is the newest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from hpsearch.errors import HpsearchError, JournalError
from hpsearch.journal.directory import JOURNAL
from hpsearch.journal.journal import Journal

__all__ = ["find_studies", "last_change", "newest_study", "written"]


def find_studies(folder: Path) -> Iterator[Path]:
    """Return the directories of studies in a folder, recursively, except within studies and hidden folders.

    A study with several names, by links, appears once.

    Raises:
        JournalError: The folder is missing or can't be read.
    """
    if not folder.is_dir():
        raise JournalError(f"{folder}: expected a folder with studies, but there is none. Name the folder they are in.")
    seen: set[tuple[int, int]] = set()
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        try:
            status = here.stat()
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(here) as entries:
                inside = sorted((entry for entry in entries), key=lambda entry: entry.name, reverse=True)
        except OSError as error:
            if here is folder:
                raise JournalError(f"{folder}: expected a folder that can be read, got: {error.strerror}.") from error
            continue  # folders without permission have no studies to show
        if any(entry.name == JOURNAL for entry in inside):
            yield here
            continue
        waiting += [here / entry.name for entry in inside if not entry.name.startswith(".") and _is_folder(entry)]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


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

    That is the time of its newest event, as tags and notes may be written later, and even readers may write. A virtual
    time may be in the future: then it is the journal's modification time.
    """
    return min(created if event is None else event, written(path))


def newest_study(folder: Path, tell: Callable[[str], None]) -> Path:
    """Return the study with the latest activity.

    Args:
        folder: Folder of studies.
        tell: Called with a message on each study that can't be read.

    Raises:
        JournalError: There is none.
    """
    found = sorted(((written(path), path) for path in find_studies(folder)), reverse=True) if folder.is_dir() else []
    best: tuple[float, Path] | None = None
    for latest, path in found:
        if best is not None and best[0] >= latest:
            break  # nothing happened in the others since they were written
        try:
            with Journal.read(path / JOURNAL) as journal:
                event = journal.last_time()
                created = 0.0 if event is not None else float(journal.study().get("created", 0.0))
        except HpsearchError as error:
            tell(f"{path} is passed over: {error}")
            continue
        when = last_change(path, event, created)
        if best is None or when > best[0]:
            best = when, path
    if best is None:
        raise JournalError(
            f"{folder}: expected a study in this folder, as no directory is named; there is none. Name one: the "
            "directory that `hpsearch run` printed."
        )
    return best[1]
