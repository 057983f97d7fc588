"""The journal: one SQLite file that holds a study whole. One process writes it, any number read it.

In WAL mode a committed transaction survives the death of the process at any moment; `durable` also survives
the loss of power. On a network file system, where WAL's shared memory doesn't work, it uses a rollback journal.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpsearch.errors import JournalError
from hpsearch.event_codec import decode, encode
from hpsearch.events import Event
from hpsearch.filesystem import is_network_filesystem

__all__ = ["FORMAT", "Journal", "no_study"]

FORMAT = 1
"""Version of the tables and of the JSON in them."""

_APPLICATION = 0x68707365
"""SQLite's `application_id`: "hpse"."""

_TABLES = """
CREATE TABLE study (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE events (
    seq INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL, trial INTEGER, body TEXT NOT NULL
);
CREATE TABLE requests (seq INTEGER PRIMARY KEY, time REAL NOT NULL, verb TEXT NOT NULL);
"""

_BUSY_SECONDS = 30.0

_ROWS_AT_ONCE = 500


class Journal:
    """An open journal."""

    def __init__(self, connection: sqlite3.Connection, path: Path | None, synchronous: str | None = None) -> None:
        self._connection = connection
        self._path = path
        self._synchronous = synchronous  # None: as it is
        self._writes = False

    @classmethod
    def create(cls, path: Path, study: Mapping[str, Any]) -> None:
        """Write a new journal with what is known of the study before it runs, and close it.

        Args:
            path: A file that doesn't exist.
            study: Names to JSON values; `"sweep"` among them.
        """
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            _make_tables(connection, study)
        finally:
            connection.close()

    @classmethod
    def in_memory(cls, study: Mapping[str, Any]) -> Journal:
        """Give a journal that vanishes with its process, for a simulated run."""
        connection = sqlite3.connect(":memory:", isolation_level=None)
        _make_tables(connection, study)
        return cls(connection, None)

    @classmethod
    def open(cls, path: Path, *, durable: bool = False) -> Journal:
        """Open a journal to go on writing it.

        Raises:
            JournalError: There is none, or it isn't one that this version reads.
        """
        return cls(_connect(path), path, synchronous="FULL" if durable else "NORMAL")

    @classmethod
    def read(cls, path: Path) -> Journal:
        """Open a journal to read it, or to leave a request, while another process may be writing it."""
        return cls(_connect(path), path)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; after writing, so that whoever may not write beside it can read it, too."""
        if self._writes:
            with contextlib.suppress(sqlite3.Error):  # another process reads it now: WAL does no harm
                self._connection.execute("PRAGMA busy_timeout=100")
                self._connection.execute("PRAGMA journal_mode=DELETE")
        self._connection.close()

    def study(self) -> dict[str, Any]:
        """Give what was recorded with the study when it was created."""
        with _explained(self._path):
            rows = self._connection.execute("SELECT key, value FROM study")
            return {key: json.loads(value) for key, value in rows}

    def append(self, events: Sequence[Event]) -> list[tuple[int, float]]:
        """Write events in one transaction; when this returns they survive the process.

        Returns:
            Each one's (number, wall time): numbers count from 1 without a gap.

        Raises:
            JournalError: They can't be written (the disk is full, say); none of them is.
        """
        now = time.time()
        rows = [(now, *encode(event)) for event in events]
        execute = self._connection.execute
        with _explained(self._path):
            self._prepare()
            try:
                execute("BEGIN IMMEDIATE")
                (last,) = execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()
                self._connection.executemany("INSERT INTO events (time, kind, trial, body) VALUES (?, ?, ?, ?)", rows)
                execute("COMMIT")
            except BaseException:
                # A second Ctrl-C may strike on either side of the commit, and SQLite rolls some errors back itself.
                if self._connection.in_transaction:
                    execute("ROLLBACK")
                raise
        return [(seq, now) for seq in range(last + 1, last + 1 + len(events))]

    def _prepare(self) -> None:
        """Choose how SQLite writes, before the first event; a study that is only looked at stays as it is."""
        if self._writes or self._path is None or self._synchronous is None:
            return
        self._writes = True
        shared = is_network_filesystem(self._path)
        self._connection.execute(f"PRAGMA journal_mode={'DELETE' if shared else 'WAL'}")
        self._connection.execute(f"PRAGMA synchronous={'FULL' if shared else self._synchronous}")

    def events(self) -> Iterator[tuple[float, Event]]:
        """Give (wall time, event) in the order of writing.

        Raises:
            JournalError: A row isn't an event.
        """
        with _explained(self._path):
            cursor = self._connection.execute("SELECT seq, time, kind, trial, body FROM events ORDER BY seq")
        while True:
            with _explained(self._path):
                rows = cursor.fetchmany(_ROWS_AT_ONCE)
            if not rows:
                return
            for seq, when, kind, trial, body in rows:
                try:
                    yield when, decode(kind, trial, body)
                except (KeyError, TypeError, ValueError) as error:
                    raise JournalError(
                        f"{self._path}: event {seq} ({kind!r}) can't be read: {error!r}. The file was changed by "
                        "something else than hpsearch; restore it from a copy, or start anew in another directory."
                    ) from error

    def request(self, verb: str) -> None:
        """Leave word for the process that runs the study."""
        with _explained(self._path):
            self._connection.execute("INSERT INTO requests (time, verb) VALUES (?, ?)", (time.time(), verb))

    def requests(self, since: int) -> list[tuple[int, str]]:
        """Give (number, verb) of the requests numbered above `since`."""
        with _explained(self._path):
            rows = self._connection.execute("SELECT seq, verb FROM requests WHERE seq > ? ORDER BY seq", (since,))
            return rows.fetchall()

    def last_request(self) -> int:
        """Give the number of the newest request, 0 when there is none."""
        with _explained(self._path):
            (newest,) = self._connection.execute("SELECT coalesce(max(seq), 0) FROM requests").fetchone()
        return int(newest)


def no_study(path: Path) -> JournalError:
    """Give the error for a journal that isn't there."""
    return JournalError(
        f"{path.parent}: expected a study's directory, which holds {path.name}; there is none here. "
        "Name the directory that `hpsearch run` printed."
    )


def _make_tables(connection: sqlite3.Connection, study: Mapping[str, Any]) -> None:
    # In one transaction, which waits for the disk once.
    connection.executescript(f"BEGIN; {_TABLES} PRAGMA application_id={_APPLICATION}; PRAGMA user_version={FORMAT};")
    rows = [(key, json.dumps(value)) for key, value in study.items()]
    connection.executemany("INSERT INTO study VALUES (?, ?)", rows)
    connection.execute("COMMIT")


def _connect(path: Path) -> sqlite3.Connection:
    if not path.is_file():
        raise no_study(path)
    with _explained(path):
        connection = sqlite3.connect(path, isolation_level=None, timeout=_BUSY_SECONDS)
        try:
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
        except BaseException:
            connection.close()
            raise
    if application != _APPLICATION:
        connection.close()
        raise JournalError(
            f"{path}: expected a journal of hpsearch, got a database of another program. Name a study's directory, "
            "or start anew in another directory."
        )
    if version != FORMAT:
        connection.close()
        raise JournalError(
            f"{path}: expected a journal of format {FORMAT}, got format {version}. Read it with the version "
            "of hpsearch that wrote it (its `hpsearch export` gives CSV), or start anew in another directory."
        )
    return connection


@contextlib.contextmanager
def _explained(path: Path | None) -> Iterator[None]:
    """Turn what SQLite raises into an error that says what to do."""
    try:
        yield
    except sqlite3.OperationalError as error:  # the disk is full, the file is read-only, it stays locked, ...
        raise JournalError(
            f"{path}: the journal can't be used now, SQLite says: {error}. What was written before is whole: "
            "mend the cause (space, permissions, another program that holds the file), then resume."
        ) from error
    except sqlite3.DatabaseError as error:
        raise JournalError(
            f"{path}: expected a journal of hpsearch, but SQLite says: {error}. Restore the file from a copy, "
            "or start anew in another directory."
        ) from error
