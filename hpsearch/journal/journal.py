"""The journal: one SQLite file with the whole study. One process writes it, and any number of processes read it.

In WAL mode a committed transaction survives the death of the process at any time. With `durable`, the transaction and
its checkpoints also survive a power loss. On a network file system, where WAL fails, it uses a rollback journal.

Events are only appended after the last event that their writer has read or written. If two processes write, because a
lock was deleted or doesn't work, one of them gets an error, on any file system.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpsearch.decision import Followed
from hpsearch.errors import JournalError, StudyInUseError
from hpsearch.events import Entry, Event, Finished, Saved, Steered
from hpsearch.journal.event_codec import decode, decode_followed, encode, encode_followed
from hpsearch.journal.file import (
    CHECKSUM,
    INSERT,
    Row,
    connect,
    connect_to_read,
    explained,
    make_tables,
    next_checksum,
    study_checksum,
    with_checksums,
)
from hpsearch.journal.filesystem import flush, identity, is_network_filesystem

Position = tuple[int, int]
"""Number and checksum of an event, which identify all events up to it."""

BEGINNING: Position = (0, 0)  # before the first event
_ROWS_AT_ONCE = 500

_DAMAGED = (
    "The file was damaged, or changed by something else than hpsearch; restore it from a copy, or start anew in "
    "another directory."
)

LABELS = ("tag", "untag", "note")
"""Verbs of labels. These requests need no answer."""

_ADDED = ("by", "details")
"""Columns that older journals lack. They are added with the first request."""


@dataclass(frozen=True)
class Request:
    """A request to the process that runs a study, or a label. Any process that can write the journal can create it.

    A request takes effect only when the process that runs the study converts it to events.
    """

    time: float
    """Seconds since the epoch."""
    verb: str
    by: str
    """`user@host:pid`; empty if unknown."""
    details: Mapping[str, Any]
    """The request's arguments, as JSON values."""
    number: int = 0
    """Number in the journal, from 1; 0 before it is written."""


def person(by: str) -> str:
    """Return `user@host` from a process's name."""
    user, _, number = by.rpartition(":")
    return user if number.isdecimal() else by


class Journal:
    """An open journal."""

    def __init__(self, connection: sqlite3.Connection, path: Path | None) -> None:
        self._connection = connection
        self._path = path
        self._identity: tuple[int, int] | None = None  # None: it is read-only, or in memory
        self.guard: Callable[[], None] = lambda: None
        """Called before each commit; it raises if this process must no longer write."""
        self._synchronous = "NORMAL"
        self._writes = self._ready = False
        self._end: Position | None = None  # position of the last event that the writer has read or written
        self._last_request = 0
        self.is_asked = False
        """Whether this process wrote a request since it last read the requests, so that it must read them at once."""

    @classmethod
    def create(cls, path: Path, study: Mapping[str, Any], rows: Iterable[Row] = ()) -> None:
        """Write a new journal with the study's record, and close it.

        Args:
            path: A file that doesn't exist.
            study: The record: names to JSON values, with `"sweep"`.
            rows: Events that another journal has, as `rows` returns them.

        Raises:
            sqlite3.Error: The file can't be written.
        """
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            make_tables(connection, study)
            connection.execute("BEGIN")
            connection.executemany(INSERT, rows)
            connection.execute("COMMIT")

    @classmethod
    def in_memory(cls, study: Mapping[str, Any]) -> Journal:
        """Return a journal that vanishes with its process, for a simulated run."""
        connection = sqlite3.connect(":memory:", isolation_level=None)
        make_tables(connection, study)
        return cls(connection, None)

    @classmethod
    def open(cls, path: Path, *, durable: bool = False) -> Journal:
        """Open a journal to append to it.

        Args:
            path: Path of the file.
            durable: Whether committed events and their checkpoints must survive a power loss.

        Raises:
            JournalError: The journal doesn't exist, or this version can't read it.
        """
        connection = connect(path)
        journal = cls(connection, path)
        try:
            with explained(path):
                journal._identity = identity(path)
                journal._synchronous = "FULL" if durable else "NORMAL"
                journal._end = journal._newest()
                (journal._last_request,) = connection.execute("SELECT coalesce(max(seq), 0) FROM requests").fetchone()
        except BaseException:
            connection.close()
            raise
        return journal

    @classmethod
    def read(cls, path: Path) -> Journal:
        """Open a journal to read it or to write a request, while another process may write it."""
        return cls(connect_to_read(path), path)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. If it was written, make it readable for readers without write permission."""
        # SQLite deletes files by name here, and another journal may have this name by now.
        if self._writes and self._path is not None and identity(self._path) == self._identity:
            with contextlib.suppress(sqlite3.Error):  # another process is reading the journal, which stays in WAL mode
                self._connection.execute("PRAGMA busy_timeout=100")
                self._connection.execute("PRAGMA journal_mode=DELETE")
        self._connection.close()

    def study(self) -> dict[str, Any]:
        """Return the study's record, which was written when the study was created.

        Raises:
            JournalError: The record is damaged.
        """
        with explained(self._path):
            rows = dict(self._connection.execute("SELECT key, value FROM study"))
        checksum = rows.pop(CHECKSUM, None)
        try:
            if checksum != study_checksum(rows):
                raise ValueError("its checksum doesn't fit")
            if "sweep" not in rows:
                raise ValueError("it is missing")
            return {key: json.loads(value) for key, value in rows.items()}
        except (TypeError, ValueError) as error:
            raise JournalError(f"{self._path}: the study's sweep can't be read: {error}. {_DAMAGED}") from error

    def append(
        self, events: Sequence[Event], followed: Sequence[Followed] | None = None, when: float | None = None
    ) -> list[tuple[int, float]]:
        """Append events in one transaction. Afterwards they survive the death of the process.

        Args:
            events: Events in order.
            followed: Decisions that followed from each event; None: none.
            when: Time of the events, in seconds since the epoch; None: now.

        Returns:
            (number, time) of each; numbers count from 1 without gaps.

        Raises:
            StudyInUseError: Another process has written to the journal since.
            JournalError: The events can't be written, for example to a full disk. No event is written.
        """
        when = time.time() if when is None else when
        texts = [""] * len(events) if followed is None else map(encode_followed, followed)
        columns = [(when, *encode(event), text) for event, text in zip(events, texts, strict=True)]
        self._check_place()
        if self._synchronous == "FULL" and self._path is not None:
            flush(self._path.parent, [event.checkpoint for event in events if isinstance(event, Saved | Finished)])
        with explained(self._path):
            self._prepare()
            with self._transaction():
                end = self._known_end()
                rows = list(with_checksums(((seq, *row) for seq, row in enumerate(columns, end[0] + 1)), end[1]))
                self._connection.executemany(INSERT, rows)
        self._end = (rows[-1][0], rows[-1][-1]) if rows else end
        return [(row[0], when) for row in rows]

    def added(self, after: Position = BEGINNING) -> tuple[list[Entry], Position] | None:
        """Return the events after a position, and their end; None if the position isn't in this journal.

        None means that the journal was replaced, and must be read from its start.

        Args:
            after: The end that an earlier call returned.

        Raises:
            JournalError: A row is damaged.
        """
        with explained(self._path):
            end = self._newest()
            if after == end:
                return [], end
            if after != BEGINNING:
                stored = [(row[0], row[-1]) for row in self._rows(f"WHERE seq = {after[0]}")]
                if stored != [after]:
                    return None
        return list(self.entries(after, end)), end

    def entries(self, after: Position = BEGINNING, end: Position | None = None) -> Iterator[Entry]:
        """Yield the events, in the order of writing, with the decisions that followed from them.

        Args:
            after: Position after which to start.
            end: Position of the last event; None: the newest one at the time of the call.

        Raises:
            JournalError: A row is damaged.
        """
        if end is None:
            with explained(self._path):
                end = self._end or self._newest()
        (last, _), (seq, checksum) = end, after
        while seq < last:
            # Page by page: without WAL an open cursor would block the writer.
            with explained(self._path):
                rows = self._rows(f"WHERE seq > {seq} AND seq <= {last} ORDER BY seq LIMIT {_ROWS_AT_ONCE}")
            if not rows:
                raise self._damage(seq + 1, "it is missing")
            for *row, stored in rows:
                seq += 1
                if row[0] != seq:
                    raise self._damage(seq, "it is missing")
                checksum = next_checksum(checksum, row)
                if stored != checksum:
                    raise self._damage(seq, "its checksum doesn't fit")
                _, when, kind, trial, body, followed = row
                try:
                    entry = Entry(when, decode(kind, trial, body), decode_followed(followed))
                except (KeyError, TypeError, ValueError) as error:
                    raise self._damage(seq, f"{kind!r}, {error!r}") from error
                yield entry
        if (seq, checksum) != end:  # the number of this row is damaged: it isn't the newest event
            raise self._damage(seq + 1, "its number is damaged")

    def rows(self, after: Position, limit: int) -> list[Row] | None:
        """Return the columns of at most `limit` events after a position; None if it isn't in this journal."""
        with explained(self._path):
            first = [(row[0], row[-1]) for row in self._rows(f"WHERE seq = {after[0]}")]
            if after != BEGINNING and first != [after]:
                return None
            return self._rows(f"WHERE seq > {after[0]} ORDER BY seq LIMIT {limit}")

    @property
    def end(self) -> Position | None:
        """Number and checksum of the last event that the writing process has read or written."""
        return self._end

    def last_time(self) -> float | None:
        """Return the time of the newest event, in seconds since the epoch; None without events."""
        with explained(self._path):
            row = self._connection.execute("SELECT time FROM events ORDER BY seq DESC LIMIT 1").fetchone()
        return None if row is None else float(row[0])

    def trials(self) -> int:
        """Return the number of trials that were started."""
        with explained(self._path):
            (newest,) = self._connection.execute("SELECT max(trial) FROM events WHERE kind = 'started'").fetchone()
        return 0 if newest is None else int(newest) + 1

    def request(self, verb: str, details: Mapping[str, Any] | None = None, by: str = "") -> int:
        """Write a request for the process that runs the study, or a label.

        Args:
            verb: The kind of request.
            details: Its arguments, as JSON values.
            by: The user, as `user@host:pid`.

        Returns:
            The request's number, for `answer`.
        """
        self.is_asked = True
        row = (time.time(), verb, by, json.dumps(details or {}, allow_nan=False))
        with explained(self._path), self._transaction():
            insert = "INSERT INTO requests (time, verb, by, details) VALUES (?, ?, ?, ?)"
            for column in _ADDED:
                if column not in self._request_columns():
                    self._connection.execute(f"ALTER TABLE requests ADD COLUMN {column} TEXT NOT NULL DEFAULT ''")
            number = self._connection.execute(insert, row).lastrowid
        assert number is not None, "a row was inserted"
        return number

    def answer(self, request: int) -> Steered | None:
        """Return the answer to a request; None: there is none yet."""
        with explained(self._path):
            rows = self._connection.execute("SELECT trial, body FROM events WHERE kind = 'steered' ORDER BY seq DESC")
            answers = (decode("steered", *row) for row in rows.fetchall())
        return next((answer for answer in answers if isinstance(answer, Steered) and answer.request == request), None)

    def requests(self) -> list[Request]:
        """Return the requests since the journal was opened for writing, each once.

        Raises:
            JournalError: This process must no longer write the journal.
        """
        self._check_place()
        new = self._requests_after(self._last_request)
        self.is_asked = False
        if new:
            self._last_request = new[-1].number
        return [request for request in new if request.verb not in LABELS]

    def all_requests(self) -> list[Request]:
        """Return all requests ever written, in order."""
        return self._requests_after(0)

    def _requests_after(self, number: int) -> list[Request]:
        """Return the requests with greater numbers, in order.

        Raises:
            JournalError: A request is damaged.
        """
        requests = []
        with explained(self._path):
            added = ", ".join(_ADDED) if self._request_columns().issuperset(_ADDED) else "'', ''"
            query = f"SELECT seq, time, verb, {added} FROM requests WHERE seq > ? ORDER BY seq"
            for seq, when, verb, by, details in self._connection.execute(query, (number,)).fetchall():
                try:
                    parsed = json.loads(details) if details else {}
                    if not isinstance(parsed, dict):
                        raise ValueError(f"its details must be an object, got {details[:80]!r}")
                    requests.append(Request(when, verb, by, parsed, seq))
                except ValueError as error:
                    problem = f"request {seq} can't be read: {error}. The file was damaged; leave it anew."
                    raise JournalError(problem) from error
        return requests

    def _request_columns(self) -> set[str]:
        return {row[1] for row in self._connection.execute("PRAGMA table_info(requests)")}

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit what the block writes, or nothing if it raises."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            # A second Ctrl-C may arrive before or after the commit, and SQLite rolls back on some errors itself.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def _check_place(self) -> None:
        """Check that the path still leads to this file, and that this process may still write it."""
        if self._identity is None or self._path is None:
            return
        if identity(self._path) != self._identity:
            raise JournalError(
                f"{self._path}: this journal was moved or deleted while its study ran, so the study ends here. What "
                "was committed is in it, wherever it lies now: go on there, with `hpsearch resume DIR`."
            )
        self.guard()

    def _prepare(self) -> None:
        """Choose SQLite's journal mode, before the first event."""
        if self._ready or self._path is None:
            return
        self._writes = True
        shared = is_network_filesystem(self._path)
        self._connection.execute(f"PRAGMA journal_mode={'DELETE' if shared else 'WAL'}")
        self._connection.execute(f"PRAGMA synchronous={'FULL' if shared else self._synchronous}")
        self._ready = True

    def _known_end(self) -> Position:
        """Return the number and checksum of the last event, within the transaction that appends.

        Raises:
            StudyInUseError: Another process has appended events that this process hasn't read.
        """
        newest = self._newest()
        if self._end not in (None, newest):
            raise StudyInUseError(
                f"{self._path}: another process has written this journal while this one ran the study, so this one "
                "ends. Nothing that counted is lost: see `hpsearch status DIR`, and resume when nobody runs it."
            )
        return newest

    def _newest(self) -> Position:
        """Return the number and checksum of the newest event in the file."""
        rows = self._rows("ORDER BY seq DESC LIMIT 1")
        if not rows:
            return BEGINNING
        seq, *_, checksum = rows[0]
        if not seq:  # the table's own description is damaged, or the end of the file is missing
            raise self._damage(1, "it has no number")
        return seq, checksum

    def _rows(self, which: str) -> list[Any]:
        columns = "seq, time, kind, trial, body, followed, checksum"
        return self._connection.execute(f"SELECT {columns} FROM events {which}").fetchall()

    def _damage(self, seq: int, problem: str) -> JournalError:
        return JournalError(f"{self._path}: event {seq} can't be read: {problem}. {_DAMAGED}")
