"""`hpsearch status`: a study's state."""

from __future__ import annotations

import argparse
import json

from hpsearch.cli.arguments import add_study
from hpsearch.cli.which_study import directory_of, loaded
from hpsearch.journal.directory import StudyDirectory

__all__ = ["status", "status_arguments"]


def status_arguments(command: argparse.ArgumentParser) -> None:
    """Add what `hpsearch status` takes."""
    add_study(command, newest=True)
    command.add_argument("--json", action="store_true", help="for programs")


def status(args: argparse.Namespace) -> int:
    """Show a study's state."""
    from hpsearch.tables.formats import strict_json
    from hpsearch.tables.status import status_record, status_text

    place = StudyDirectory(directory_of(args))
    study, holder = loaded(place.path), place.holder()
    if args.json:
        print(json.dumps(strict_json(status_record(study, holder)), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        print(status_text(study, holder), end="")
    return 0
