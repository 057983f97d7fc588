"""Choose the display for a stream."""

from __future__ import annotations

import os
from typing import TextIO

from hpsearch.observers.display import Display, Silent
from hpsearch.observers.notebook import NotebookTable, publisher
from hpsearch.observers.progress import LiveTable, PlainLines

__all__ = ["choose_progress"]


def choose_progress(stream: TextIO | None, quiet: bool = False) -> Display:
    """Return a live table for terminals that can redraw and notebooks, plain lines for files, nothing otherwise."""
    if stream is None or quiet:  # Python's streams are None if the descriptor is closed
        return Silent()
    if (publish := publisher(stream)) is not None:
        return NotebookTable(publish, stream)
    live = stream.isatty() and os.environ.get("TERM") != "dumb"
    stream, owned = _apart(stream)
    return LiveTable(stream, owned) if live else PlainLines(stream, owned)


def _apart(stream: TextIO) -> tuple[TextIO, bool]:
    """Return our own stream on the same target, as a trial in this process redirects the standard ones to its log."""
    try:
        if stream.fileno() not in (1, 2):
            return stream, False
        return os.fdopen(os.dup(stream.fileno()), "w", encoding="utf-8", errors="replace"), True
    except (OSError, ValueError):  # one in memory has no descriptor
        return stream, False
