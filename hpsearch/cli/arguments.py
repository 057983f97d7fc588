"""Arguments that several commands share: functions to add them, to parse them, and to find their study and trial."""

from __future__ import annotations

import argparse
import contextlib
import math
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpsearch.config.strict_json import parse_json
from hpsearch.errors import HpsearchError, JournalError
from hpsearch.journal.directory import JOURNAL, StudyDirectory
from hpsearch.storage.bucket import is_url
from hpsearch.tables.wording import shown_path

if TYPE_CHECKING:
    from hpsearch.results.study import Study

_NEWEST = "(default: the newest study in runs)"
_RUNS = Path("runs")


def add_study(command: argparse.ArgumentParser, newest: bool = False, reads: bool = False) -> None:
    """Add `DIR`, a study's directory.

    Args:
        command: Parser of the command.
        newest: Whether it is optional.
        reads: Whether the command only reads the study, which may then be in a bucket.
    """
    kind = readable if reads else _directory if newest else Path
    if newest:
        command.add_argument("dir", type=kind, nargs="?", metavar="DIR", help=_NEWEST)
    else:
        command.add_argument("dir", type=kind, metavar="DIR")


def add_trial(command: argparse.ArgumentParser, default: str, reads: bool = False) -> None:
    """Add `DIR` and `TRIAL`, both optional. `default` is the help text for a missing trial; `reads` as above."""
    add_study(command, newest=True, reads=reads)
    command.add_argument("trial", type=number, nargs="?", metavar="TRIAL", help=default)


def add_sweep(command: argparse.ArgumentParser) -> None:
    """Add `SWEEP.yaml`, and `--set`."""
    command.add_argument("sweep", type=Path, metavar="SWEEP.yaml")
    add_set(command, "change a key of the sweep, e.g. --set early_terminate.max_iter=9; may be repeated")


def add_set(command: argparse.ArgumentParser, text: str) -> None:
    """Add `--set`."""
    command.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help=text)


def add_format(command: argparse.ArgumentParser, *formats: str) -> None:
    """Add `--format`; a table is the default."""
    command.add_argument("--format", choices=("table", *formats), default="table")


def _directory(text: str) -> Path:
    """Parse a directory's path. `./16` becomes absolute, so that it differs from trial 16: a `Path` drops the dot."""
    path = Path(text)
    return path.absolute() if str(path).isdecimal() and not text.isdecimal() else path


def readable(text: str) -> Path | str:
    """Parse a directory's path, or the URL of a study in a bucket."""
    return text if is_url(text) else _directory(text)


def copied(place: Path | str) -> Path:
    """Return a study's directory; of a study in a bucket, that of a copy of its journal."""
    if not is_url(place):
        return Path(place)
    from hpsearch.storage.studies import copy_of

    return copy_of(place)


def add_weights(command: argparse.ArgumentParser, text: str) -> None:
    """Add `--weights`."""
    command.add_argument("--weights", type=_weights, metavar="METRIC=WEIGHT,...", help=text)


def _weights(text: str) -> dict[str, float]:
    weights: dict[str, float] = {}
    for item in text.split(","):
        name, _, weight = (part.strip() for part in item.rpartition("="))
        if name in weights:
            raise argparse.ArgumentTypeError(f"must name each metric once, got {name} again")
        try:
            weights[name] = float(weight)
        except ValueError:
            name = ""
        if not name:
            raise argparse.ArgumentTypeError(f"must be METRIC=WEIGHT, such as accuracy=1,latency_ms=0.01, got {item!r}")
    return weights


def comma_list(
    command: argparse.ArgumentParser, name: str, kind: Callable[[str], object], metavar: str, help_text: str
) -> None:
    """Add an option with several values, separated by commas."""

    def listed(text: str) -> list[object]:
        return [kind(item.strip()) for item in text.split(",")]

    command.add_argument(name, type=listed, metavar=f"{metavar},...", help=help_text)


def number(text: str) -> int:
    """Parse a whole number of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 0, such as that of a trial, got {text!r}")
    return int(text)


def target(text: str) -> Path:
    """Parse the path of an output file or folder."""
    if not text:
        raise argparse.ArgumentTypeError("must be the name of a folder or a file, got ''")
    return Path(text)


def positive(text: str) -> int:
    """Parse a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, at least 1, got {text!r}")
    return int(text)


def amount(text: str) -> float:
    """Parse a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return value


def read_json(path: Path, error_type: type[HpsearchError]) -> tuple[str, Any]:
    """Return a JSON file's name for messages, and its content.

    Args:
        path: The file; `-` is standard input.
        error_type: Type of the error that is raised if the file can't be read, or isn't JSON.
    """
    name = "standard input" if str(path) == "-" else str(path)
    try:
        return name, parse_json(sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise error_type(f"{name}: must be JSON: {error}") from None


def directory_of(args: argparse.Namespace) -> Path:
    """Return the command line's directory; if there is none, print and return the newest study's directory.

    Raises:
        JournalError: No directory is given, and there is no study.
    """
    return newest() if args.dir is None else copied(args.dir)


def newest() -> Path:
    """Return the newest study's directory, and print it.

    Raises:
        JournalError: There is no study.
    """
    from hpsearch.results.studies import newest_study

    study_dir = newest_study(_RUNS, lambda text: print(f"hpsearch: {text}", file=sys.stderr))
    print(f"hpsearch: {study_dir} is taken, the newest study in {_RUNS}", file=sys.stderr)
    return study_dir


def trial_of(args: argparse.Namespace) -> tuple[Path, int | None]:
    """Return the directory and the trial that a command line names: `DIR 16`, `16` alone, `DIR` alone, or nothing.

    Raises:
        HpsearchError: The argument could be a trial or a study's directory.
        JournalError: No study is given, and there is none.
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
    """Load a study. Output of a user's searcher or scheduler goes to stderr, so that it doesn't mix with a CSV."""
    from hpsearch.results.study import load  # not every command with these arguments needs it

    with contextlib.redirect_stdout(sys.stderr):
        return load(directory)


def each_a_study(command: str, directories: Sequence[Path]) -> Sequence[Path]:
    """Check that no directory of the command line is a folder of studies, and return the directories.

    Args:
        command: Name of the command.
        directories: The command's arguments.

    Raises:
        JournalError: A directory isn't a study, but contains studies.
    """
    for directory in directories:
        if StudyDirectory(directory).exists() or StudyDirectory(directory / "study").exists():
            continue
        for pattern in ("*/", "*/*/"):
            if count := len(list(directory.glob(f"{pattern}{JOURNAL}"))):
                raise JournalError(
                    f"{directory}: expected a study's directory, which holds {JOURNAL}; there is none here, but there "
                    f"{'is one' if count == 1 else f'are {count:,}'} in it: type `hpsearch {command} "
                    f"{shlex.quote(str(directory))}/{pattern}`, or name those that you mean."
                )
    return directories


def pasted(directory: Path) -> str:
    """Return the shortest path of a directory from here, quoted for a shell."""
    return shlex.quote(shown_path(directory.absolute(), Path.cwd()))
