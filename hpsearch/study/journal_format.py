"""The tables of a journal, and their checksums.

An event's checksum is the CRC-32 of all events up to it. So it also tells of an event that is missing, or in another's
place, and what is appended hangs on what is there. It finds damage, which is all it is for: whoever may write the file
could make it fit.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

__all__ = [
    "APPLICATION",
    "CHECKSUM",
    "FORMAT",
    "INSERT",
    "make_tables",
    "next_checksum",
    "study_checksum",
    "with_checksums",
]

FORMAT = 2
"""Version of the tables and of the JSON in them."""

APPLICATION = 0x68707365
"""SQLite's `application_id`: "hpse"."""

CHECKSUM = "checksum"
"""The key of the study's own checksum, beside what was recorded."""

INSERT = "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)"

_TABLES = """
CREATE TABLE study (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE events (
    seq INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL, trial INTEGER, body TEXT NOT NULL,
    followed TEXT NOT NULL, checksum INTEGER NOT NULL
);
CREATE TABLE requests (seq INTEGER PRIMARY KEY, time REAL NOT NULL, verb TEXT NOT NULL,
    by TEXT NOT NULL DEFAULT '', details TEXT NOT NULL DEFAULT '');
"""

_Row = Sequence[Any]
"""An event's columns but for the checksum: seq, time, kind, trial, body, followed."""


def make_tables(connection: sqlite3.Connection, study: Mapping[str, Any]) -> None:
    """Make a journal of an empty file."""
    # In one transaction, which waits for the disk once.
    connection.executescript(f"BEGIN; {_TABLES} PRAGMA application_id={APPLICATION}; PRAGMA user_version={FORMAT};")
    rows = {key: json.dumps(value) for key, value in study.items()}
    connection.executemany("INSERT INTO study VALUES (?, ?)", [*rows.items(), (CHECKSUM, study_checksum(rows))])
    connection.execute("COMMIT")


def with_checksums(rows: Iterable[_Row], checksum: int = 0) -> Iterator[tuple[Any, ...]]:
    """Add the checksum to each of some events, after those that gave `checksum`."""
    for row in rows:
        checksum = next_checksum(checksum, row)
        yield *row, checksum


def next_checksum(checksum: int, row: _Row) -> int:
    """Give the checksum of all events up to this one, from that of those before it."""
    seq, when, kind, trial, body, followed = row
    return zlib.crc32(f"{seq} {when!r} {kind} {trial} {body} {followed}\n".encode(), checksum)


def study_checksum(rows: Mapping[str, str]) -> str:
    """Give the checksum of what was recorded with the study, as its own row holds it."""
    return str(zlib.crc32("".join(sorted(f"{key} {value}\n" for key, value in rows.items())).encode()))
