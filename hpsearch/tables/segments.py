"""The table of segments, as CSV, as JSON and for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields

from hpsearch.results.segments import SegmentRow
from hpsearch.tables.formats import csv_text, json_text
from hpsearch.tables.layout import WHOLE, Column, Screen, table_text
from hpsearch.tables.wording import LONGEST_CELL, duration, shortened

__all__ = ["segments_to_csv", "segments_to_json", "segments_to_table"]

_AGAIN = {
    "halved": "runs again beside half of those that were lost with it",
    "alone": "runs again with a worker for itself",
    "wider": "runs again on twice as many workers",
}


def segments_to_csv(rows: Sequence[SegmentRow]) -> str:
    r"""Return the segments as CSV with `\n` line ends; None is empty."""
    columns = [field.name for field in fields(SegmentRow)]
    return csv_text(columns, [list(asdict(row).values()) for row in rows])


def segments_to_json(rows: Sequence[SegmentRow]) -> str:
    """Return the segments as a JSON array of objects, one on a line."""
    return json_text(asdict(row) for row in rows)


def segments_to_table(rows: Sequence[SegmentRow], screen: Screen = WHOLE, see: str = "with --format csv") -> str:
    """Return the segments for a terminal; `see` explains how to see columns that don't fit."""
    ended = [_told(row) for row in rows]
    return table_text(
        [
            Column("trial", [str(row.trial) for row in rows], is_kept=True),
            Column("attempt", [str(row.attempt) for row in rows], is_kept=True),
            Column("start", [str(row.start) for row in rows]),
            Column("end", ["" if row.end is None else str(row.end) for row in rows]),
            Column("width", [str(row.width) for row in rows]),
            *([Column("lanes", [str(row.lanes) for row in rows])] if any(row.lanes > 1 for row in rows) else []),
            Column("reason", [shortened(row.reason, LONGEST_CELL) for row in rows], is_text=True),
            Column("ended", [shortened(text, LONGEST_CELL) for text in ended], is_text=True, is_kept=True),
            Column("time", ["" if row.seconds is None else duration(row.seconds) for row in rows]),
        ],
        screen,
        see,
    )


def _told(row: SegmentRow) -> str:
    """Return how a segment ended, and what was done then."""
    ended = f"{row.ended}, {_AGAIN[row.then]}" if row.then else row.ended
    return f"{ended}: {row.message}" if row.message else ended
