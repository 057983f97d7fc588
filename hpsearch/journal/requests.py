"""Requests and labels in a journal, written by anyone with write permission.

They have no effect on their own: the process that runs the study turns a request into an event.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpsearch.errors import JournalError

__all__ = ["LABELS", "Request", "leave_request", "person", "requests_after"]

LABELS = ("tag", "untag", "note")
"""Verbs of labels, which need no answer."""

_ADDED = ("by", "details")
"""Columns that journals of before lack; they get them with the first request that is left."""


@dataclass(frozen=True)
class Request:
    """One word that was left."""

    time: float
    """Seconds since the epoch."""
    verb: str
    by: str
    """`user@host:pid`; empty where it isn't known."""
    details: Mapping[str, Any]
    """JSON values."""
    number: int = 0
    """Counts from 1 in the journal; 0 before it is left."""


def person(by: str) -> str:
    """Return `user@host` from a process's name."""
    who, _, number = by.rpartition(":")
    return who if number.isdecimal() else by


def leave_request(connection: sqlite3.Connection, request: Request) -> int:
    """Write a request, in a transaction of its own; return its number."""
    execute = connection.execute
    execute("BEGIN IMMEDIATE")
    try:
        missing = set(_ADDED) - _columns(connection)
        for column in _ADDED:
            if column in missing:
                execute(f"ALTER TABLE requests ADD COLUMN {column} TEXT NOT NULL DEFAULT ''")
        row = (request.time, request.verb, request.by, json.dumps(request.details, allow_nan=False))
        number = execute("INSERT INTO requests (time, verb, by, details) VALUES (?, ?, ?, ?)", row).lastrowid
        execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            execute("ROLLBACK")
        raise
    assert number is not None, "a row was inserted"
    return number


def requests_after(connection: sqlite3.Connection, number: int) -> Iterator[Request]:
    """Return the requests with greater numbers, in order.

    Raises:
        JournalError: A request is damaged.
    """
    added = ", ".join(_ADDED) if _columns(connection).issuperset(_ADDED) else "'', ''"
    query = f"SELECT seq, time, verb, {added} FROM requests WHERE seq > ? ORDER BY seq"
    for seq, when, verb, by, details in connection.execute(query, (number,)).fetchall():
        try:
            yield Request(when, verb, by, json.loads(details) if details else {}, seq)
        except ValueError as error:
            raise JournalError(f"request {seq} can't be read: {error}. The file was damaged; leave it anew.") from error


def _columns(connection: sqlite3.Connection) -> set[str]:
    return {row[1] for row in connection.execute("PRAGMA table_info(requests)")}
