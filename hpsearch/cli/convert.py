"""`hpsearch convert`: convert a W&B sweep file so that hpsearch runs it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hpsearch.cli.arguments import target
from hpsearch.errors import SweepError
from hpsearch.sweep.convert import converted, origins
from hpsearch.sweep.document import parse_document, read_text
from hpsearch.sweep.file import SweepFile
from hpsearch.tables.wording import counted


def convert_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch convert`."""
    command.add_argument("sweep", type=Path, metavar="FILE")
    command.add_argument("--output", type=target, metavar="FILE", help="a new file (default: print it)")


def convert(args: argparse.Namespace) -> int:
    """Write the converted file, with a comment above each changed line, and print notes on it."""
    if args.output is not None and args.output.exists():
        raise SweepError(f"{args.output}: must not exist, as nothing is overwritten; name another file as --output")
    text = read_text(args.sweep)
    new, changes = converted(text, str(args.sweep))
    runs = _checked(args.sweep, new, origins(text, changes))
    for change in changes:
        print(f"line {change.line}: {change.why}", file=sys.stderr)
    for note in runs:
        print(f"note: {note}", file=sys.stderr)
    summary = (
        counted(len({change.line for change in changes}), "line") + " changed"
        if changes
        else "nothing had to be changed"
    )
    if args.output is None:
        print(new, end="")
    else:
        args.output.write_text(new, "utf-8")
    print(f"{args.sweep}: {summary}", file=sys.stderr)
    return 0


def _checked(path: Path, text: str, lines: Sequence[int]) -> list[str]:
    """Load the converted text; return notes on it.

    Args:
        path: The original file.
        text: The converted text.
        lines: Line number in the original file for each converted line.

    Raises:
        SweepError: The file lacks something that only the user can add.
    """
    file = SweepFile(parse_document(text, str(path), lines=lines))
    sweep, notes = file.sweep(runs=False), file.notes()
    if sweep.trainable is None and sweep.program is None and sweep.command is None:
        notes.append("no program is named: add program: train.py, or trainable: package.module:function")
    return notes
