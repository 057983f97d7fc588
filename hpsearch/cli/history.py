"""`hpsearch history`: who ran and steered a study, when, and with what result."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path

from hpsearch.cli.arguments import add_format, add_study
from hpsearch.cli.steer import amounts
from hpsearch.journal.history import HistoryEntry
from hpsearch.results.study import load
from hpsearch.tables.formats import json_text
from hpsearch.tables.layout import Column, screen_of, table_text
from hpsearch.tables.wording import shortened

__all__ = ["history", "history_arguments"]

_LONGEST_ASKED, _LONGEST_ANSWER = 50, 80
"""Characters of cells of the history."""


def history_arguments(command: argparse.ArgumentParser) -> None:
    """Add what `hpsearch history` takes."""
    add_study(command)
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
    if "trials" in details:
        return f"trials {' '.join(map(str, details['trials']))}" if details["trials"] else "all that failed"
    if "tags" in details:
        return " ".join(details["tags"]) or "none"
    if "text" in details:
        return str(details["text"]) or "none"
    return _without_folder(details["command"]) if "command" in details else amounts(details)


def _without_folder(command: str) -> str:
    """Return a command as one types it: without Python, and without the folders that the program lies in."""
    words = shlex.split(command)
    words = words[1:] if len(words) > 1 and Path(words[0]).name.startswith("python") else words
    words = words[1:] if words[:1] == ["-m"] else words
    return shlex.join([Path(words[0]).name, *words[1:]]) if words else command


def _clock(when: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))
