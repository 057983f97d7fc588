"""Which display fits the place where a sweep is shown."""

from __future__ import annotations

import os
from typing import TextIO

from hpsearch.observers.display import Display, Silent
from hpsearch.observers.notebook import NotebookTable, publisher
from hpsearch.observers.progress import LiveTable, PlainLines

__all__ = ["choose_progress"]


def choose_progress(stream: TextIO | None, quiet: bool = False) -> Display:
    """Give a live table in a terminal that can redraw and in a notebook, plain lines in files, nothing without any."""
    if stream is None or quiet:  # None is Python's way to say that the descriptor is closed
        return Silent()
    if (publish := publisher(stream)) is not None:
        return NotebookTable(publish, stream)
    live = stream.isatty() and os.environ.get("TERM") != "dumb"
    stream, owned = _apart(stream)
    return LiveTable(stream, owned) if live else PlainLines(stream, owned)


def _apart(stream: TextIO) -> tuple[TextIO, bool]:
    """Give a stream of our own onto the same place: a trial in this process turns the standard ones to its log."""
    try:
        if stream.fileno() not in (1, 2):
            return stream, False
        return os.fdopen(os.dup(stream.fileno()), "w", encoding="utf-8", errors="replace"), True
    except (OSError, ValueError):  # one in memory has no descriptor
        return stream, False
