"""What was added to a journal since one looked last."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from hpsearch.errors import JournalError
from hpsearch.events import Exhausted, Lost, Opened
from hpsearch.journal.journal import BEGINNING, Journal

STUDY = {"sweep": {"name": "s"}, "created": 1.5}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "study.db"
    Journal.create(path, STUDY)
    return path


def test_each_event_is_given_once(path):
    with Journal.open(path) as writer:
        with Journal.read(path) as journal:
            assert journal.added() == ([], BEGINNING)
        writer.append([Opened("inline", None, "", ""), Exhausted()])
        with Journal.read(path) as journal:
            first, known = journal.added() or ([], BEGINNING)
            assert journal.added(known) == ([], known)
        writer.append([Lost(0, 1, "")])
        with Journal.read(path) as journal:
            second, end = journal.added(known) or ([], BEGINNING)
            assert end == (3, second and writer.end and writer.end[1])
    assert [type(entry.event) for entry in (*first, *second)] == [Opened, Exhausted, Lost]


@pytest.mark.parametrize("events", [0, 1, 2, 3], ids=["none", "fewer", "as many", "more"])
def test_another_journal_in_its_place_isnt_taken_for_its_end(path, events):
    with Journal.open(path) as writer:
        writer.append([Exhausted(), Exhausted()], when=1.0)
        known = writer.end
    path.unlink()
    Journal.create(path, STUDY)
    with Journal.open(path) as writer:
        writer.append([Exhausted()] * events, when=2.0)
    assert known is not None
    with Journal.read(path) as journal:
        assert journal.added(known) is None


def test_damage_in_what_is_new_is_told(path):
    with Journal.open(path) as writer:
        writer.append([Exhausted()])
        known = writer.end
        writer.append([Exhausted(), Exhausted()])
    connection = sqlite3.connect(path)
    connection.execute("UPDATE events SET time = time + 1 WHERE seq = 2")
    connection.commit()
    connection.close()
    assert known is not None
    with Journal.read(path) as journal, pytest.raises(JournalError, match="event 2 can't be read"):
        journal.added(known)
