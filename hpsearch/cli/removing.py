"""Commands that delete: `rm` deletes studies, `clean` a study's unneeded files. Both list the files, and ask first."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

from hpsearch.cli.arguments import add_study
from hpsearch.errors import HpsearchError
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.filesystem import size_of
from hpsearch.journal.provenance import process_name
from hpsearch.study.removal import Parts, parts_of, remove, unneeded
from hpsearch.tables.wording import bytes_text, counted, first_of

_LISTED = 10


def rm_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch rm`."""
    command.add_argument("dirs", type=Path, nargs="+", metavar="DIR")
    _add_yes(command)


def rm(args: argparse.Namespace) -> int:
    """Delete studies."""
    study_dirs = list({study_dir.path: study_dir for study_dir in map(StudyDirectory, args.dirs)}.values())
    with ExitStack() as locks:
        studies: list[tuple[StudyDirectory, Parts]] = []
        for study_dir in study_dirs:
            locks.enter_context(study_dir.running(process_name()))  # refuses a running study, and locks it
            studies.append((study_dir, parts_of(study_dir)))
        for study_dir, parts in studies:
            print(f"{study_dir.path}: {bytes_text(size_of(parts.ours))}")
            if parts.others:
                foreign = first_of([path.name for path in parts.others], _LISTED)
                print(f"  what isn't the study's stays, and so does the folder: {foreign}")
        if not _agreed(args, "delete this study" if len(studies) == 1 else f"delete these {len(studies)} studies"):
            return 1
        for study_dir, parts in studies:
            remove(parts.ours)
            if not parts.others:
                _remove_folder(study_dir.path)
    return 0


def _remove_folder(path: Path) -> None:
    try:
        path.rmdir()
    except OSError as error:
        raise HpsearchError(
            f"{path}: must be empty now, as the study in it is deleted, got: {error.strerror}. See what is there"
        ) from error


def clean_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch clean`."""
    add_study(command)
    command.add_argument("--logs", action="store_true", help="also the logs of trials that ended well")
    _add_yes(command)


def clean(args: argparse.Namespace) -> int:
    """Delete files that neither a resume of the study nor its best trials need."""
    study_dir = StudyDirectory(args.dir)
    with study_dir.running(process_name()):
        parts_of(study_dir)
        gone = unneeded(study_dir, args.logs)
        if not gone:
            print(f"{study_dir.path}: nothing that isn't needed")
            return 0
        kinds: defaultdict[str, list[Path]] = defaultdict(list)
        for path in gone:
            kinds[_kind(study_dir, path)].append(path)
        for kind, paths in kinds.items():
            title = "TensorBoard's event files" if kind == "event files" else counted(len(paths), kind)
            print(f"{title:<30} {bytes_text(size_of(paths))}")
        if not _agreed(args, f"delete {bytes_text(size_of(gone))}"):
            return 1
        remove(gone)
    return 0


def _kind(study_dir: StudyDirectory, path: Path) -> str:
    return "event files" if path == study_dir.tensorboard else "log" if path.suffix == ".log" else "checkpoint"


def _agreed(args: argparse.Namespace, question: str) -> bool:
    """Ask for confirmation. Return True without asking if the command line confirms it.

    Raises:
        HpsearchError: There is no terminal to ask on.
    """
    if args.yes:
        return True
    if sys.stdin is None or not sys.stdin.isatty():
        raise HpsearchError(f"{question}: must be agreed to, but there is no terminal to ask at. Say --yes")
    print(f"{question}? [y/N] ", end="", flush=True)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    print("nothing is deleted")
    return False


def _add_yes(command: argparse.ArgumentParser) -> None:
    command.add_argument("--yes", action="store_true", help="don't ask")
