"""The journal in a bucket: a chain of immutable batches of events.

A batch is named by its first event. Its first line names the process that wrote it, and the SHA-256 of the former batch
(of the study's record, for the first one); the other lines are rows of the journal, which have checksums of their own.
So the last batch proves all former ones, and of two processes that continue the same chain, only one can create the
next name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from hpsearch.errors import StorageError
from hpsearch.journal.file import Row, next_checksum
from hpsearch.journal.journal import BEGINNING, Position

FOLDER = "journal/"
"""Prefix of the names of batches."""

_ADVICE = "The bucket was changed by something else than hpsearch; restore the object, or start a new study."


@dataclass(frozen=True)
class Batch:
    """Some events of a journal, in order."""

    driver: str
    """Identifies the process that wrote the batch; the checkpoints that its events name are stored under it."""
    former: str
    """SHA-256 of the former batch."""
    rows: Sequence[Row]
    """The events' columns, as the journal's file has them; at least one."""

    @property
    def name(self) -> str:
        """The batch's name in the bucket."""
        return name_of(self.rows[0][0])

    @property
    def end(self) -> Position:
        """The position of the last event."""
        return self.rows[-1][0], self.rows[-1][-1]

    def encode(self) -> bytes:
        """Return the batch's bytes."""
        head = {"driver": self.driver, "former": self.former}
        return "".join(f"{json.dumps(line)}\n" for line in (head, *map(list, self.rows))).encode()

    @classmethod
    def decode(cls, name: str, content: bytes) -> Batch:
        """Return the batch of these bytes.

        Raises:
            StorageError: They aren't a batch of this name.
        """
        try:
            head, *rows = map(json.loads, content.decode().splitlines())
            batch = cls(head["driver"], head["former"], [tuple(row) for row in rows])
            if batch.name != name or any(len(row) != 7 for row in rows):
                raise ValueError("its events don't match its name")
            return batch
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise StorageError(f"{name}: expected a batch of a journal, got: {error}. {_ADVICE}") from error


def name_of(first: int) -> str:
    """Return the name of the batch that begins with an event."""
    return f"{FOLDER}{first:012d}.jsonl"


def batch_with(event: int, names: Sequence[str]) -> str:
    """Return the batch that has an event, of all batches in order."""
    return max(name for name in names if name <= name_of(event))


def digest_of(content: bytes) -> str:
    """Return the SHA-256 of a batch, or of a study's record."""
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class ChainEnd:
    """The end of a chain, from which it continues."""

    digest: str
    """SHA-256 of the last batch; without one, of the study's record."""
    end: Position = BEGINNING
    """The position of the last event."""

    def after(self, name: str, content: bytes) -> tuple[Batch, ChainEnd]:
        """Return the next batch, and the new end.

        Raises:
            StorageError: The batch isn't the next one, or its events aren't what was written.
        """
        batch = Batch.decode(name, content)
        seq, checksum = self.end
        if batch.former != self.digest or batch.rows[0][0] != seq + 1:
            raise StorageError(
                f"{name}: expected the batch after event {seq}, but it follows another one: a batch is missing or was "
                f"replaced. {_ADVICE}"
            )
        for *row, stored in batch.rows:
            seq, checksum = seq + 1, next_checksum(checksum, row)
            if (row[0], stored) != (seq, checksum):
                raise StorageError(f"{name}: expected event {seq} as it was written, but it differs. {_ADVICE}")
        return batch, ChainEnd(digest_of(content), batch.end)
