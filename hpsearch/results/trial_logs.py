"""The output of trials: the logs of their attempts, in a study's directory."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpsearch.journal.directory import OUTPUT_AT_HAND

_LOG = "output.log"
_RANK = re.compile(r"rank-(\d+)")


@dataclass(frozen=True, slots=True, order=True)
class LogFile:
    """Output of one worker in one attempt."""

    trial: int
    attempt: int
    rank: int
    path: Path

    @property
    def name(self) -> str:
        """Prefix of the output's lines."""
        rank = f" rank {self.rank}" if self.rank else ""
        return f"trial {self.trial}{rank}"


def logs_of(study: Path, trial: int) -> list[LogFile]:
    """Return the logs of a trial, by attempt and rank. Attempts without output are left out."""
    logs = []
    for attempt in _numbered(study / "trials" / f"{trial:05d}"):
        folder = study / "trials" / f"{trial:05d}" / str(attempt)
        paths = {0: folder / _LOG}
        for name in _names(folder):
            if (rank := _RANK.fullmatch(name)) is not None:
                paths[int(rank[1])] = folder / name / _LOG
        logs += [LogFile(trial, attempt, rank, path) for rank, path in sorted(paths.items()) if path.is_file()]
    return logs


def logs_of_all(study: Path) -> Iterator[LogFile]:
    """Return the logs of all trials, by trial number."""
    for trial in _numbered(study / "trials"):
        yield from logs_of(study, trial)


def unfiled(study: Path) -> list[Path]:
    """Return log files that weren't moved to an attempt's directory yet. They exist when an attempt begins."""
    return [
        path
        for name in sorted(_names(study / "trials"))
        if name.startswith(OUTPUT_AT_HAND) and (path := study / "trials" / name).is_file() and path.stat().st_size
    ]


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last lines of a file, without reading the whole file."""
    try:
        with path.open("rb") as file:
            size, block, text = file.seek(0, os.SEEK_END), 8192, b""
            while True:
                start = max(0, size - block)
                file.seek(start)
                text = file.read(size - start)
                if not start or text.count(b"\n") > count:
                    break
                block *= 4
    except OSError:
        return []
    lines = text.decode("utf-8", "backslashreplace").removesuffix("\n")
    return list(deque(lines.split("\n"), maxlen=count)) if lines else []


def _numbered(folder: Path) -> list[int]:
    return sorted(int(name) for name in _names(folder) if name.isdecimal())


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        return []
