from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from hpsearch.errors import JournalError, StudyInUseError
from hpsearch.events import Event, Exhausted, Lost, Opened
from hpsearch.journal.file import FORMAT
from hpsearch.journal.journal import Journal

STUDY = {"sweep": {"name": "s", "half": "\ud800"}, "created": 1.5}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "study.db"
    Journal.create(path, STUDY)
    return path


def events(path: Path) -> list[Event]:
    with Journal.read(path) as journal:
        return [entry.event for entry in journal.entries()]


def test_it_gives_back_the_study_and_the_events_in_their_order(path):
    written: list[Event] = [Opened("inline", None, "me@here:1", "hpsearch run"), Lost(0, 1, "\udce9"), Exhausted()]
    with Journal.open(path) as journal:
        assert journal.study() == STUDY
        journal.append(written[:2])
        journal.append(written[2:])
        journal.append([])
    with Journal.read(path) as journal:
        times, read = zip(*((entry.time, entry.event) for entry in journal.entries()), strict=True)
    assert list(read) == written
    assert times[0] == times[1] <= times[2]


def test_one_append_is_whole_or_not_there(path):
    class Unknown(Lost):
        pass

    with Journal.open(path) as journal:
        journal.append([Exhausted()])
        with pytest.raises(KeyError):
            journal.append([Exhausted(), Unknown(0, 1, "")])
        (pages,) = journal._connection.execute("PRAGMA page_count").fetchone()
        journal._connection.execute(f"PRAGMA max_page_count={pages}")
        with pytest.raises(JournalError, match=r"(?s)study\.db: .*disk is full.*resume"):
            journal.append([Exhausted(), Lost(0, 1, "x" * 20_000)])
        journal.append([Lost(0, 1, "")])
    assert events(path) == [Exhausted(), Lost(0, 1, "")]


def test_an_interrupt_on_either_side_of_the_commit_passes_through(path):
    """As a second Ctrl-C would: the signal's handler raises between two bytecodes."""
    for after_commit in (False, True):
        with Journal.open(path) as journal:
            trace = _striking(journal, after_commit)
            former = sys.gettrace()
            sys.settrace(trace)
            try:
                with pytest.raises(KeyboardInterrupt):
                    journal.append([Exhausted()])
            finally:
                sys.settrace(former)
            assert not journal._connection.in_transaction
    assert events(path) == [Exhausted()]


def _striking(journal: Journal, after_commit: bool):
    """Return a trace function that interrupts `append` inside its transaction, or just after it."""
    begun = False

    def trace(frame, event, argument):
        nonlocal begun
        if frame.f_code.co_name != "append":
            return trace
        inside = journal._connection.in_transaction
        begun = begun or inside
        if begun and inside is not after_commit:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    return trace


WRITER = """
import os, signal, sys
from pathlib import Path
from hpsearch.events import Exhausted, Lost
from hpsearch.journal.journal import Journal

path, rounds = Path(sys.argv[1]), int(sys.argv[2])
journal = Journal.open(path)
steps = 0
def step(*_):
    global steps
    steps += 1
    if steps == rounds:
        os.kill(os.getpid(), signal.SIGKILL)
journal._connection.set_progress_handler(step, 7)   # called inside SQLite, every 7 instructions of its machine
number = 0
while True:
    journal.append([Lost(number, 1, "x" * 3000), Lost(number, 2, "y" * 3000)])
    number += 1
    print(number, flush=True)
"""


@pytest.mark.parametrize(
    "steps", [1, 2, 4, 11, 301, *(pytest.param(steps, marks=pytest.mark.exhaustive) for steps in (3, 5, 6, 7, 8, 40))]
)
def test_it_survives_sigkill_at_any_moment_inside_a_transaction(path, steps):
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(path), str(steps)], stdout=subprocess.PIPE, check=False, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    told = len(done.stdout.splitlines())
    read = events(path)
    assert read == [Lost(n // 2, n % 2 + 1, ("x", "y")[n % 2] * 3000) for n in range(len(read))]
    assert len(read) in (2 * told, 2 * told + 2)  # killed between the commit and the line, at most
    with Journal.open(path) as journal:
        journal.append([Exhausted()])
    assert events(path) == [*read, Exhausted()]


def test_readers_see_whole_transactions_while_another_process_writes(path):
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path), "0"], stdout=subprocess.DEVNULL)
    seen = [0]
    try:
        while len(set(seen)) < 10:
            assert writer.poll() is None
            read = events(path)
            assert len(read) % 2 == 0
            assert read[-1:] == [Lost(len(read) // 2 - 1, 2, "y" * 3000)] * bool(read)
            seen.append(len(read))
    finally:
        writer.kill()
        writer.wait()
    assert seen == sorted(seen)
    assert len(events(path)) % 2 == 0


def test_a_reader_in_the_middle_of_the_events_neither_blocks_nor_sees_what_is_added(path):
    with Journal.open(path) as journal, Journal.read(path) as reader:
        journal.append([Exhausted(), Exhausted()])
        reading = reader.entries()
        next(reading)
        journal.append([Lost(0, 1, "")])
        assert [entry.event for entry in reading] == [Exhausted()]
        assert [entry.event for entry in reader.entries()] == [Exhausted(), Exhausted(), Lost(0, 1, "")]


def test_a_request_is_for_the_process_that_writes_then_and_for_no_later_one(path):
    with Journal.open(path) as journal, Journal.read(path) as other:
        assert journal.requests() == []
        other.request("stop")
        other.request("go", {"trial": 3}, "me@here:1")
        assert [(one.verb, one.details, one.by) for one in journal.requests()] == [
            ("stop", {}, ""),
            ("go", {"trial": 3}, "me@here:1"),
        ]
        assert journal.requests() == []
    with Journal.open(path) as journal:
        assert journal.requests() == []
        assert [one.verb for one in journal.all_requests()] == ["stop", "go"]


def test_labels_are_left_for_no_process(path):
    with Journal.open(path) as journal, Journal.read(path) as other:
        for verb in ("tag", "stop", "note", "untag"):
            other.request(verb)
        assert [one.verb for one in journal.requests()] == ["stop"]
        assert [one.verb for one in journal.all_requests()] == ["tag", "stop", "note", "untag"]


def test_a_request_that_was_damaged_is_no_request(path):
    with Journal.read(path) as journal:
        journal.request("prune", {"trial": 3})
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE requests SET details = '{'")
    with Journal.read(path) as journal, pytest.raises(JournalError, match="request 1 can't be read"):
        journal.all_requests()


def test_in_memory_holds_the_same():
    with Journal.in_memory(STUDY) as journal:
        journal.append([Exhausted()])
        assert journal.study() == STUDY
        assert [entry.event for entry in journal.entries()] == [Exhausted()]


def test_a_local_journal_is_in_wal_mode_and_durable_asks_for_the_disk(path):
    def pragma(journal: Journal, name: str) -> object:
        return journal._connection.execute(f"PRAGMA {name}").fetchone()[0]

    before = path.read_bytes()
    with Journal.open(path):
        pass
    assert path.read_bytes() == before, "opening alone changes nothing"
    with Journal.open(path) as journal:
        journal.append([Exhausted()])
        assert (pragma(journal, "journal_mode"), pragma(journal, "synchronous")) == ("wal", 1)
    with Journal.read(path) as journal:
        assert pragma(journal, "journal_mode") == "delete", "who may not write beside it can read it"
    with Journal.open(path, durable=True) as journal:
        journal.append([Exhausted()])
        assert (pragma(journal, "journal_mode"), pragma(journal, "synchronous")) == ("wal", 2)


def test_on_a_network_file_system_it_avoids_wal(path, monkeypatch):
    monkeypatch.setattr("hpsearch.journal.journal.is_network_filesystem", lambda path: True)
    with Journal.open(path) as journal:
        journal.append([Exhausted()])
        assert journal._connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert journal._connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert [entry.name for entry in path.parent.iterdir()] == ["study.db"]
    assert events(path) == [Exhausted()]


def _missing(path: Path) -> None:
    path.unlink()


def _a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _text(path: Path) -> None:
    path.write_text("not a database, but long enough to have a header of a hundred bytes" * 3)


def _half_a_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:50])


def _another_program(path: Path) -> None:
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t (x)")
    connection.close()


def _of_format(version: int, path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version={version}")
    connection.close()


@pytest.mark.parametrize("opened", [Journal.open, Journal.read])
@pytest.mark.parametrize(
    ("harm", "told", "way_out"),
    [
        (_missing, "expected a study's directory", "that `hpsearch run` printed"),
        (_a_directory, "expected a study's directory", "that `hpsearch run` printed"),
        (_empty, "a database of another program", "Name a study's directory"),
        (_text, "file is not a database", "Restore the file from a copy"),
        (_half_a_header, "expected a journal", "start anew in another directory"),
        (_another_program, "a database of another program", "Name a study's directory"),
        *(
            (
                functools.partial(_of_format, version),
                f"expected a journal of format {FORMAT}, got format {version}",
                "version of hpsearch",
            )
            for version in (FORMAT - 1, FORMAT + 1)
        ),
    ],
)
def test_what_is_no_journal_is_refused_with_the_way_out(path, opened, harm, told, way_out):
    harm(path)
    with pytest.raises(JournalError) as caught:
        opened(path)
    assert told in str(caught.value)
    assert way_out in str(caught.value)
    assert str(path.parent) in str(caught.value)


def test_a_truncated_journal_is_refused_where_it_ends(path):
    with Journal.open(path) as journal:
        journal.append([Lost(number, 1, "x" * 2000) for number in range(100)])
    for size in (path.stat().st_size // 2, 8192, 4096):
        os.truncate(path, size)
        with pytest.raises(JournalError, match="Restore the file from a copy"), Journal.read(path) as journal:
            list(journal.entries())


def test_of_two_writers_the_second_to_write_is_refused_whatever_became_of_their_locks(path):
    with Journal.open(path) as one, Journal.open(path) as other:
        one.append([Lost(1, 1, "")])
        for _ in range(2):
            with pytest.raises(StudyInUseError, match="another process has written this journal"):
                other.append([Lost(2, 1, "")])
        one.append([Lost(1, 2, "")])
    with Journal.open(path) as other:
        other.append([Lost(2, 1, "")])
    assert events(path) == [Lost(1, 1, ""), Lost(1, 2, ""), Lost(2, 1, "")]


def test_a_writer_replays_what_it_knows_and_is_refused_beyond(path):
    """Not what another process appends between its opening and its reading: it would take it for replayed."""
    with Journal.open(path) as one, Journal.open(path) as other:
        one.append([Lost(1, 1, "")])
        assert list(other.entries()) == []
        with pytest.raises(StudyInUseError):
            other.append([Lost(2, 1, "")])


def test_the_guard_is_asked_before_each_commit_and_each_look_at_requests(path):
    def refuse() -> None:
        raise StudyInUseError("not yours")

    with Journal.open(path) as journal:
        journal.guard = refuse
        with pytest.raises(StudyInUseError, match="not yours"):
            journal.append([Exhausted()])
        with pytest.raises(StudyInUseError, match="not yours"):
            journal.requests()
    assert events(path) == []


@pytest.mark.parametrize("where_to", ["moved", "deleted", "replaced"])
@pytest.mark.parametrize("network", [False, True])
def test_a_journal_that_was_moved_or_deleted_is_written_no_more(path, where_to, network, monkeypatch):
    monkeypatch.setattr("hpsearch.journal.journal.is_network_filesystem", lambda path: network)
    directory, moved = path.parent, path.parent.parent / f"{path.parent.name}-moved"
    with Journal.open(path) as journal:
        journal.append([Exhausted()])
        directory.rename(moved)
        if where_to == "deleted":
            shutil.rmtree(moved)
        if where_to == "replaced":
            directory.mkdir()
            Journal.create(path, STUDY)
            new = Journal.open(path)
            new.append([Lost(0, 1, "")])
        with pytest.raises(JournalError, match=r"moved or deleted.*hpsearch resume DIR"):
            journal.append([Exhausted()])
        with pytest.raises(JournalError, match="moved or deleted"):
            journal.requests()
    if where_to == "replaced":  # and its own files weren't taken for ours
        new.append([Lost(0, 2, "")])
        assert events(path) == [Lost(0, 1, ""), Lost(0, 2, "")]
        new.close()
    if where_to != "deleted":
        assert events(moved / "study.db") == [Exhausted()]
        shutil.rmtree(moved)


def test_one_who_reads_slowly_keeps_no_writer_waiting_where_there_is_no_wal(path, monkeypatch):
    monkeypatch.setattr("hpsearch.journal.journal.is_network_filesystem", lambda path: True)
    monkeypatch.setattr("hpsearch.journal.file._BUSY_SECONDS", 0.0)
    written = [Lost(number, 1, "x" * 100) for number in range(2000)]
    with Journal.open(path) as journal, Journal.read(path) as reader:
        journal.append(written)
        reading = reader.entries()
        read = [next(reading).event]
        journal.append([Exhausted()])
        read += [entry.event for entry in reading]
    assert read == written
    assert events(path) == [*written, Exhausted()]
