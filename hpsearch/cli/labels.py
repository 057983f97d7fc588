"""Commands for a study's labels: `tag` and `note`."""

from __future__ import annotations

import argparse

from hpsearch.cli.arguments import add_study
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.labels import add_tags, labels_of, remove_tags, write_note


def tag_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch tag`."""
    add_study(command)
    command.add_argument("tags", nargs="*", metavar="TAG", help="a word")
    command.add_argument("--remove", action="store_true", help="take these tags off")


def tag(args: argparse.Namespace) -> int:
    """Add tags to a study or remove them, and print its tags."""
    study_dir = StudyDirectory(args.dir)
    change = remove_tags if args.remove else add_tags
    labels = change(study_dir, args.tags) if args.tags else labels_of(study_dir)
    print(" ".join(labels.tags) or "no tags")
    return 0


def note_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch note`."""
    add_study(command)
    command.add_argument("text", nargs="?", metavar="TEXT")


def note(args: argparse.Namespace) -> int:
    """Write a study's note if one is given, and print the note."""
    study_dir = StudyDirectory(args.dir)
    labels = labels_of(study_dir) if args.text is None else write_note(study_dir, args.text)
    print(labels.note or "no note")
    return 0
