"""A journal whose bits changed is refused, with the place."""

from __future__ import annotations

import random
import shutil
import sqlite3
from itertools import islice
from pathlib import Path

import pytest

from hpsearch.decision import Followed
from hpsearch.errors import JournalError
from hpsearch.events import Ended, Event, Finished, Started
from hpsearch.journal.journal import Journal
from hpsearch.study.state import SweepState
from hpsearch.trial import Report
from tests.hpsearch.support.lives import OPENED
from tests.hpsearch.support.scripted import sweep_of

SWEEP = sweep_of(early_terminate=None, max_iter=2, run_cap=9, seed=1)

STUDY = {"sweep": SWEEP.to_json(), "created": 1.5}


def _lived() -> tuple[list[Event], list[Followed]]:
    sweep_state = SweepState(SWEEP)
    (start,) = islice(sweep_state.upcoming(), 1)
    assert isinstance(start, Started)
    reports = tuple(Report(0, i, {"loss": i / 8}, 0.5) for i in (1, 2))
    events: list[Event] = [start, Finished(0, 1, 2, "c", reports, False, 1.5)]
    followed = [sweep_state.apply(event) for event in events]
    more: list[Event] = [OPENED, Ended("interrupted")]
    return [*events, *more], [*followed, *(sweep_state.apply(event) for event in more)]


EVENTS, FOLLOWED = _lived()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "study.db"
    Journal.create(path, STUDY)
    with Journal.open(path) as journal:
        journal.append(EVENTS[:2], FOLLOWED[:2])
        journal.append(EVENTS[2:], FOLLOWED[2:])
    return path


def tamper(path: Path, change: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(change)
    connection.close()


def events(path: Path) -> list[Event]:
    with Journal.read(path) as journal:
        return [entry.event for entry in journal.entries()]


@pytest.mark.parametrize(
    "change",
    [
        "time = time + 1",
        "kind = 'saved'",
        "kind = 'unheard_of'",
        "trial = 3",
        "trial = NULL",
        "body = replace(body, '0.25', '0.35')",
        "body = replace(body, 'false', 'true')",
        "body = replace(body, 'iteration', 'iterbtion')",
        "body = cast(x'7b22c3' as text)",
        "body = '{}'",
        "body = 'no json'",
        "body = 'null'",
        "followed = replace(followed, 'complete', 'stop')",
        "followed = ''",
        "checksum = checksum + 1",
        "seq = 7",
    ],
)
def test_an_event_that_was_changed_is_named(path, change):
    tamper(path, f"UPDATE events SET {change} WHERE seq = 2")
    with pytest.raises(JournalError, match=r"study\.db: event 2 can't be read: .*restore it from a copy"):
        events(path)


def test_an_event_that_is_missing_is_named(path):
    tamper(path, "DELETE FROM events WHERE seq = 2")
    with pytest.raises(JournalError, match="event 2 can't be read: it is missing"):
        events(path)


def test_events_that_changed_places_are_found(path):
    tamper(path, "UPDATE events SET seq = -seq WHERE seq < 3")
    tamper(path, "UPDATE events SET seq = 3 + seq WHERE seq < 0")
    with pytest.raises(JournalError, match="event 1 can't be read"):
        events(path)


@pytest.mark.parametrize(
    "change",
    [
        """UPDATE study SET value = replace(value, '1', '3') WHERE key = 'sweep'""",
        "UPDATE study SET key = 'sweeq' WHERE key = 'sweep'",
        "UPDATE study SET key = 'checksun' WHERE key = 'checksum'",
        "DELETE FROM study WHERE key = 'sweep'",
        "DELETE FROM study WHERE key = 'checksum'",
    ],
)
def test_a_stored_sweep_that_was_changed_is_refused(path, change):
    tamper(path, change)
    with (
        Journal.read(path) as journal,
        pytest.raises(JournalError, match=r"study\.db: the study's sweep can't be read: .*restore it from a copy"),
    ):
        journal.study()


def test_no_flipped_bit_gives_another_study(path, tmp_path):
    """Any bit of the file: it is refused, or was of no importance."""
    whole = path.read_bytes()
    rng = random.Random(0)
    harmed = tmp_path / "harmed" / "study.db"
    refused = 0
    for _ in range(500):
        place, bit = rng.randrange(len(whole)), 1 << rng.randrange(8)
        harmed.parent.mkdir()
        harmed.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
        try:
            with Journal.read(harmed) as journal:
                assert journal.study() == STUDY
                assert [entry.event for entry in journal.entries()] == EVENTS[: len(events(harmed))]
        except JournalError:
            refused += 1
        shutil.rmtree(harmed.parent)
    assert refused


def test_no_missing_end_gives_a_study_in_which_nothing_happened(path):
    """SQLite takes what is missing of a file's last page for zeros, and zeros for an event of number 0."""
    with Journal.open(path) as journal:
        journal.append(EVENTS * 20)  # so that the newest have a page of their own
    whole = path.read_bytes()
    for size in range(len(whole) - 4096, len(whole), 64):
        path.write_bytes(whole[:size])
        try:
            with Journal.read(path) as journal:
                told = [entry.event for entry in journal.entries()]
        except JournalError:
            continue
        assert told == EVENTS * 21
