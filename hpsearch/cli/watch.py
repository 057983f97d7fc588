"""`hpsearch watch`: a live view of a study."""

from __future__ import annotations

import argparse
import os
import sys

from hpsearch.cli.arguments import add_study
from hpsearch.cli.which_study import directory_of, pasted
from hpsearch.errors import HpsearchError
from hpsearch.journal.directory import StudyDirectory

__all__ = ["watch", "watch_arguments"]


def watch_arguments(command: argparse.ArgumentParser) -> None:
    """Add what `hpsearch watch` takes."""
    add_study(command, newest=True)


def watch(args: argparse.Namespace) -> int:
    """Show it until the user has seen enough."""
    place = StudyDirectory(directory_of(args))
    shown = pasted(place.path)
    streams = (sys.stdin, sys.stdout, sys.stderr)
    if os.environ.get("TERM") == "dumb" or not all(stream is not None and stream.isatty() for stream in streams):
        raise HpsearchError(
            f"watch: must have a terminal that can redraw; elsewhere see: hpsearch status {shown}; "
            f"hpsearch trials {shown}"
        )
    from hpsearch.watch.live_study import LiveStudy, Tail

    tail = Tail(place)
    study = LiveStudy(tail.look())
    from hpsearch.watch.app import WatchApp  # textual takes half a second

    app = WatchApp(place, shown, tail, study)
    app.run()
    return app.return_code or 0
