"""`hpsearch report`: write one or several studies as one HTML page."""

from __future__ import annotations

import argparse
from pathlib import Path

from hpsearch.cli.arguments import copied, each_a_study, loaded, newest, readable, target
from hpsearch.errors import HpsearchError
from hpsearch.journal.directory import StudyDirectory
from hpsearch.journal.filesystem import put_in_place, writing


def report_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `hpsearch report`."""
    command.add_argument("dirs", type=readable, nargs="*", metavar="DIR", help="(default: the newest study in runs)")
    command.add_argument("--output", type=target, metavar="FILE", help="(default: report.html in the first DIR)")
    command.add_argument("--svg", type=target, metavar="FOLDER", help="write each picture there, too")
    command.add_argument("--png", help=argparse.SUPPRESS)


def report(args: argparse.Namespace) -> int:
    """Write the page, and the pictures if requested."""
    from hpsearch.page.page import page_of

    if args.png is not None:
        raise HpsearchError(
            f"--png {args.png}: pictures are written as SVG: use --svg {args.png}. Other programs make PNGs of them: "
            "rsvg-convert -z 2 brackets.svg -o brackets.png"
        )
    studies = [
        loaded(directory) for directory in each_a_study("report", [copied(place) for place in args.dirs]) or [newest()]
    ]
    page = page_of(studies)
    first = studies[0].directory
    is_copy = StudyDirectory(first).copied_from() is not None
    path: Path = args.output or (Path(f"{first.name}-report.html") if is_copy else first / "report.html")
    with writing(f"{path}: expected a file that can be written", "Name another with --output."):
        if args.output is None:
            put_in_place(page.html().encode(), path)
        else:
            path.write_text(page.html(), encoding="utf-8")
    print(path)
    if args.svg is not None:
        for picture in page.save_pictures(args.svg):
            print(picture)
    return 0
