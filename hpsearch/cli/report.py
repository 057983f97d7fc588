"""The command that writes a study, or several, on one page."""

from __future__ import annotations

import argparse
from pathlib import Path

from hpsearch.cli.which_study import each_a_study, loaded, newest
from hpsearch.errors import HpsearchError, StorageError
from hpsearch.journal.filesystem import put_in_place

__all__ = ["report"]


def report(given: argparse.Namespace) -> int:
    """Write the page, and the pictures where they are asked for."""
    from hpsearch.page.page import page_of

    if given.png is not None:
        raise HpsearchError(
            f"--png {given.png}: pictures are written as SVG: use --svg {given.png}. Other programs make PNGs of them: "
            "rsvg-convert -z 2 brackets.svg -o brackets.png"
        )
    studies = [loaded(directory) for directory in each_a_study("report", given.dirs) or [newest()]]
    page = page_of(studies)
    path: Path = given.output or studies[0].directory / "report.html"
    try:
        if given.output is None:
            put_in_place(page.html().encode(), path)
        else:
            path.write_text(page.html(), encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"{path}: expected a file that can be written, got: {error.strerror}. Name another with --output."
        ) from error
    print(path)
    if given.svg is not None:
        for picture in page.save_pictures(given.svg):
            print(picture)
    return 0
