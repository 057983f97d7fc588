"""The file of a journal: its tables, its checksums, and functions that open it.

An event's checksum is the CRC-32 of all events up to it, so it also detects missing and misplaced events, and appended
events depend on the earlier ones. It detects damage, not manipulation.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shlex
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpsearch.errors import JournalError

FORMAT = 2
"""Version of the tables and of the JSON in them."""

APPLICATION = 0x68707365
"""SQLite's `application_id`: "hpse"."""

CHECKSUM = "checksum"
"""Key of the checksum of the study's record."""

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

Row = Sequence[Any]
"""An event's columns without the checksum: seq, time, kind, trial, body, followed."""

_BUSY_SECONDS = 30.0

_BESIDE = ("-wal", "-journal")
"""Suffixes of SQLite's other files, which may contain a part of the journal."""

_UNWRITABLE = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})
"""SQLite's error codes if the file system is read-only, full or failing."""


def make_tables(connection: sqlite3.Connection, study: Mapping[str, Any]) -> None:
    """Create the journal's tables in an empty file."""
    # In one transaction, which waits for the disk once.
    connection.executescript(f"BEGIN; {_TABLES} PRAGMA application_id={APPLICATION}; PRAGMA user_version={FORMAT};")
    rows = {key: json.dumps(value) for key, value in study.items()}
    connection.executemany("INSERT INTO study VALUES (?, ?)", [*rows.items(), (CHECKSUM, study_checksum(rows))])
    connection.execute("COMMIT")


def with_checksums(rows: Iterable[Row], checksum: int = 0) -> Iterator[tuple[Any, ...]]:
    """Add checksums to events. `checksum` is that of all earlier events."""
    for row in rows:
        checksum = next_checksum(checksum, row)
        yield *row, checksum


def next_checksum(checksum: int, row: Row) -> int:
    """Return the checksum of all events up to this one, from that of the earlier ones."""
    seq, when, kind, trial, body, followed = row
    return zlib.crc32(f"{seq} {when!r} {kind} {trial} {body} {followed}\n".encode(), checksum)


def study_checksum(rows: Mapping[str, str]) -> str:
    """Return the checksum of the study's record, to compare with its row `checksum`."""
    return str(zlib.crc32("".join(sorted(f"{key} {value}\n" for key, value in rows.items())).encode()))


def connect(path: Path) -> sqlite3.Connection:
    """Open an existing journal.

    Raises:
        JournalError: The journal doesn't exist, or this version can't read it.
    """
    if not is_file(path):
        raise no_study(path)
    with explained(path):
        return _checked(_opened(path), path)


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Open a journal as `connect` does, even if nothing can be written.

    SQLite must write to recover the files of a killed process. If it can't, the journal is read from a copy. Otherwise
    it would be read without its newest events.
    """
    if not is_file(path):
        raise no_study(path)
    with explained(path):
        try:
            return _checked(_opened(path), path)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in _UNWRITABLE:
                raise
            return _checked(_copied(path), path)


def is_file(path: Path) -> bool:
    """Return whether there is a journal at this path.

    Raises:
        JournalError: The path can't be accessed.
    """
    try:
        return path.is_file()
    except OSError as error:
        raise JournalError(
            f"{path.parent}: expected a study's directory, got: {error.strerror}. Name the directory that "
            "`hpsearch run` printed."
        ) from None


def no_study(path: Path) -> JournalError:
    """Return the error for a journal that doesn't exist."""
    name = "the directory that `hpsearch run` printed"
    with contextlib.suppress(OSError):  # permission denied
        inside = [journal.parent for journal in path.parent.glob(f"*/{path.name}")]
        if path.parent / "study" in inside:  # where `hpsearch design` puts it
            name = str(path.parent / "study")
        elif inside:
            name = f"one of those in it, which `hpsearch list {shlex.quote(str(path.parent))}` shows"
    return JournalError(
        f"{path.parent}: expected a study's directory, which holds {path.name}; there is none here. Name {name}."
    )


@contextlib.contextmanager
def explained(path: Path | None) -> Iterator[None]:
    """Convert SQLite's errors to hpsearch's, with advice."""
    try:
        yield
    except sqlite3.OperationalError as error:  # the disk is full, the file is read-only, it stays locked, ...
        raise JournalError(
            f"{path}: the journal can't be used now, SQLite says: {error}. What was written before is whole: "
            "mend the cause (space, permissions, another program that holds the file), then resume."
        ) from error
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # UnicodeDecodeError: the name of a table is damaged
        raise JournalError(
            f"{path}: expected a journal of hpsearch, but SQLite says: {error}. Restore the file from a copy, "
            "or start anew in another directory."
        ) from error


def _opened(path: Path) -> sqlite3.Connection:
    # As a URI with `mode=rw`: otherwise SQLite would create a file that was just deleted.
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=_BUSY_SECONDS)


def _copied(path: Path) -> sqlite3.Connection:
    """Return a read-only copy of a journal in memory."""
    try:
        with tempfile.TemporaryDirectory(prefix="hpsearch-journal-") as scratch:
            copy = Path(scratch) / path.name
            before = _states(path)
            shutil.copyfile(path, copy)
            for suffix in _BESIDE:
                with contextlib.suppress(FileNotFoundError):
                    shutil.copyfile(f"{path}{suffix}", f"{copy}{suffix}")
            if _states(path) != before:
                raise JournalError(
                    f"{path}: the journal is being written, and can't be read here at the same time. Read it as a "
                    "user, and on a machine, that may write it, or when no process runs the study."
                )
            memory = sqlite3.connect(":memory:", isolation_level=None)
            with contextlib.closing(_opened(copy)) as source:
                source.backup(memory)
    except OSError as error:
        raise JournalError(
            f"{path}: the journal lies where nothing can be written, and can't be copied to {tempfile.gettempdir()}: "
            f"{error.strerror}. Copy the study's directory to where there is room, and look at it there."
        ) from error
    memory.execute("PRAGMA query_only=ON")
    return memory


def _states(path: Path) -> list[tuple[int, int] | None]:
    """Return values for a journal's files that change when the files are written."""
    states: list[tuple[int, int] | None] = []
    for suffix in ("", *_BESIDE):
        file = Path(f"{path}{suffix}")
        status = file.stat() if file.exists() else None
        states.append(None if status is None else (status.st_size, status.st_mtime_ns))
    return states


def _checked(connection: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    """Return the connection after checking that this version can read the journal."""
    try:
        # Text that isn't UTF-8 is damaged: the checksum locates it, while SQLite would only fail to decode.
        connection.text_factory = functools.partial(str, encoding="utf-8", errors="replace")
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if application != APPLICATION:
            raise JournalError(
                f"{path}: expected a journal of hpsearch, got a database of another program. Name a study's "
                "directory, or start anew in another directory."
            )
        if version != FORMAT:
            raise JournalError(
                f"{path}: expected a journal of format {FORMAT}, got format {version}. Read it with the "
                "version of hpsearch that wrote it (its `hpsearch export` gives CSV), or start anew in another "
                "directory."
            )
    except BaseException:
        connection.close()
        raise
    return connection
