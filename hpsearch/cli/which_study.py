"""Which study, and which trial of it, a command line means."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from pathlib import Path

from hpsearch.errors import HpsearchError
from hpsearch.report.studies import newest_study
from hpsearch.report.study import Study, load
from hpsearch.study.directory import StudyDirectory

__all__ = ["directory_of", "loaded", "newest", "pasted", "trial_of"]

_RUNS = Path("runs")


def directory_of(given: argparse.Namespace) -> Path:
    """Give the directory that a command line names; where it names none, the newest study's, and say so.

    Raises:
        JournalError: None is named, and there is none.
    """
    if given.dir is not None:
        named: Path = given.dir
        return named
    return newest()


def newest() -> Path:
    """Give the newest study's directory, and say which it is.

    Raises:
        JournalError: There is none.
    """
    found = newest_study(_RUNS, lambda text: print(f"hpsearch: {text}", file=sys.stderr))
    print(f"hpsearch: {found} is taken, the newest study in {_RUNS}", file=sys.stderr)
    return found


def trial_of(given: argparse.Namespace) -> tuple[Path, int | None]:
    """Give the directory and the trial that a command line names: `DIR 16`, `16` alone, `DIR` alone, or nothing.

    Raises:
        HpsearchError: A number alone is a study's directory, too.
        JournalError: No study is named, and there is none.
    """
    alone = given.dir if given.trial is None else None
    if alone is not None and str(alone).isdecimal():
        if StudyDirectory(alone).exists():
            raise HpsearchError(
                f"{alone}: must be a directory or a trial, but could be both: write ./{alone} for the study in this "
                f"directory, or name the study before the trial"
            )
        given.trial, given.dir = int(str(alone)), None
    trial: int | None = given.trial
    return directory_of(given), trial


def loaded(directory: Path) -> Study:
    """Load a study; what a searcher or scheduler of one's own prints meanwhile is no part of a CSV."""
    with contextlib.redirect_stdout(sys.stderr):
        return load(directory)


def pasted(directory: Path) -> str:
    """Give a directory as it can be pasted into a shell, by its shortest name from here."""
    here = Path.cwd()
    shown = directory.absolute()
    return shlex.quote(str(shown.relative_to(here) if shown.is_relative_to(here) and shown != here else shown))
