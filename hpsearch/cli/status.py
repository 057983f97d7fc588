"""Commands for a study's state: `status` shows it, `watch` updates it live, `history` shows who ran and steered it."""

from __future__ import annotations

import argparse
import os
import sys
import time

from hpsearch.cli.arguments import add_format, add_study, directory_of, loaded, pasted
from hpsearch.cli.steer import amounts
from hpsearch.config.import_paths import installing, is_installed
from hpsearch.errors import HpsearchError
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.history import HistoryEntry
from hpsearch.journal.provenance import without_folder
from hpsearch.results.study import load
from hpsearch.tables.formats import indented_json, json_text
from hpsearch.tables.layout import Column, screen_of, table_text
from hpsearch.tables.wording import shortened, trials_named


def status_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch status`."""
    add_study(command, newest=True, reads=True)
    command.add_argument("--json", action="store_true", help="for programs")


def status(args: argparse.Namespace) -> int:
    """Show a study's state."""
    from hpsearch.tables.status import status_record, status_text

    study_dir = StudyDirectory(directory_of(args))
    study, holder = loaded(study_dir.path), study_dir.holder()
    if args.json:
        print(indented_json(status_record(study, holder), ensure_ascii=False))
    else:
        print(status_text(study, holder), end="")
    return 0


def watch_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch watch`."""
    add_study(command, newest=True)


def watch(args: argparse.Namespace) -> int:
    """Show a study's state live, until the user quits."""
    if not is_installed("textual"):
        raise HpsearchError(f"watch: needs textual, which isn't installed: {installing('watch')}")
    study_dir = StudyDirectory(directory_of(args))
    shown = pasted(study_dir.path)
    streams = (sys.stdin, sys.stdout, sys.stderr)
    if os.environ.get("TERM") == "dumb" or not all(stream is not None and stream.isatty() for stream in streams):
        raise HpsearchError(
            f"watch: must have a terminal that can redraw; elsewhere see: hpsearch status {shown}; "
            f"hpsearch trials {shown}"
        )
    from hpsearch.watch.live_study import LiveStudy, Tail

    tail = Tail(study_dir)
    study = LiveStudy(tail.look())
    from hpsearch.watch.app import WatchApp  # textual takes half a second

    app = WatchApp(study_dir, shown, tail, study)
    app.run()
    return app.return_code or 0


_LONGEST_ASKED, _LONGEST_ANSWER = 50, 80
"""Maximum numbers of characters in cells of the history."""


def history_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch history`."""
    add_study(command, reads=True)
    add_format(command, "json")


def history(args: argparse.Namespace) -> int:
    """Show who ran and steered a study."""
    steps = load(args.dir).history()
    if args.format == "json":
        print(json_text(vars(step) for step in steps))
        return 0
    text = table_text(
        [
            Column("time", [_clock(step.time) for step in steps], is_text=True),
            Column("verb", [step.verb for step in steps], is_text=True),
            Column("what", [shortened(_details(step), _LONGEST_ASKED) for step in steps], is_text=True),
            Column("by", [step.by for step in steps], is_text=True),
            Column("came of it", [shortened(step.outcome, _LONGEST_ANSWER) for step in steps], is_text=True),
        ],
        screen_of(sys.stdout),
        "with --format json",
    )
    print(text, end="")
    return 0


def _details(step: HistoryEntry) -> str:
    details = step.details
    if "points" in details:
        return "; ".join(amounts(point) for point in details["points"])
    if step.verb == "change":
        return "; ".join(details.get("set", ())) or "parameters"
    if "notes" in details:
        return f"{amounts({name: details[name] for name in details if name not in ('trials', 'notes')})}, " + (
            trials_named(details["trials"])
        )
    if "trials" in details:
        return f"trials {' '.join(map(str, details['trials']))}" if details["trials"] else "all that failed"
    if "tags" in details:
        return " ".join(details["tags"]) or "none"
    if "text" in details:
        return str(details["text"]) or "none"
    return without_folder(details["command"]) if "command" in details else amounts(details)


def _clock(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))
