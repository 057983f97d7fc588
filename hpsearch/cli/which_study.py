"""Which study, and which trial of it, a command line means."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from hpsearch.errors import HpsearchError, JournalError
from hpsearch.journal.directory import JOURNAL, StudyDirectory
from hpsearch.results.studies import newest_study
from hpsearch.results.study import Study, load
from hpsearch.tables.wording import shown_path

__all__ = ["directory_of", "each_a_study", "loaded", "newest", "pasted", "trial_of"]

_RUNS = Path("runs")
_MOST_NAMED = 8
"""Studies that an error names one by one."""


def directory_of(args: argparse.Namespace) -> Path:
    """Return the command line's directory; without one, the newest study's, with a message.

    Raises:
        JournalError: There is no directory and no study.
    """
    if args.dir is not None:
        named: Path = args.dir
        return named
    return newest()


def newest() -> Path:
    """Return the newest study's directory, and print it.

    Raises:
        JournalError: There is none.
    """
    found = newest_study(_RUNS, lambda text: print(f"hpsearch: {text}", file=sys.stderr))
    print(f"hpsearch: {found} is taken, the newest study in {_RUNS}", file=sys.stderr)
    return found


def trial_of(args: argparse.Namespace) -> tuple[Path, int | None]:
    """Return the directory and the trial that a command line names: `DIR 16`, `16` alone, `DIR` alone, or nothing.

    Raises:
        HpsearchError: A number alone is a study's directory, too.
        JournalError: No study is named, and there is none.
    """
    alone = args.dir if args.trial is None else None
    if alone is not None and str(alone).isdecimal():
        if StudyDirectory(alone).exists():
            raise HpsearchError(
                f"{alone}: must be a directory or a trial, but could be both: write ./{alone} for the study in this "
                f"directory, or name the study before the trial"
            )
        args.trial, args.dir = int(str(alone)), None
    trial: int | None = args.trial
    return directory_of(args), trial


def loaded(directory: Path) -> Study:
    """Load a study; output of a user's searcher or scheduler must not mix with a CSV."""
    with contextlib.redirect_stdout(sys.stderr):
        return load(directory)


def each_a_study(command: str, directories: Sequence[Path]) -> Sequence[Path]:
    """Return the command line's directories; a folder of studies is refused, with advice.

    Args:
        command: Name of the command.
        directories: Its arguments.

    Raises:
        JournalError: A directory isn't a study, but contains some.
    """
    for directory in directories:
        if StudyDirectory(directory).exists() or StudyDirectory(directory / "study").exists():
            continue
        if found := _inside(directory):
            raise JournalError(
                f"{directory}: expected a study's directory, which holds {JOURNAL}; there is none here, but there "
                f"{'is one' if len(found) == 1 else f'are {len(found):,}'} in it: type "
                f"`hpsearch {command} {_typed(directory, found)}`, or name those that you mean."
            )
    return directories


def _inside(folder: Path) -> list[Path]:
    """Return the studies in a folder, or else in folders of it, by name."""
    for pattern in (f"*/{JOURNAL}", f"*/*/{JOURNAL}"):
        try:
            found = sorted(path.parent for path in folder.glob(pattern))
        except OSError:  # permission denied, or an invalid name
            return []
        if found := [path for path in found if _is_seen(path, folder)]:
            return found
    return []


def _typed(folder: Path, found: Sequence[Path]) -> str:
    """Return a shell pattern for studies in a folder, or their names where a pattern matches others too."""
    pattern = "/".join("*" * len(found[0].relative_to(folder).parts))
    there = [path for path in folder.glob(pattern) if _is_seen(path, folder)]
    for ending, matched in (("", there), ("/", [path for path in there if path.is_dir()])):
        if len(found) > 1 and sorted(matched) == found:
            return f"{'' if folder.absolute() == Path.cwd() else f'{pasted(folder)}/'}{pattern}{ending}"
    return " ".join(map(pasted, found[:_MOST_NAMED])) + (" ..." if len(found) > _MOST_NAMED else "")


def _is_seen(path: Path, folder: Path) -> bool:
    """Return whether a pattern of the shell finds it."""
    return not any(part.startswith(".") for part in path.relative_to(folder).parts)


def pasted(directory: Path) -> str:
    """Return a directory as it can be pasted into a shell, by its shortest name from here."""
    return shlex.quote(shown_path(directory.absolute(), Path.cwd()))
