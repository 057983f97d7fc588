"""Where an attempt's output is put, whenever it is filed."""

from __future__ import annotations

from pathlib import Path

from hpsearch.worker.attempt import LOG, AttemptLog


def test_output_that_begins_after_it_was_to_be_filed_is_no_part_of_the_next_attempts(tmp_path: Path) -> None:
    log = AttemptLog(tmp_path / "at-hand")
    path = log.begin(str(tmp_path / "1"))
    log.file()  # a heartbeat, before anything was written
    path.write_text("first\n")
    log.end()
    log.begin(str(tmp_path / "2")).write_text("second\n")
    log.end()
    assert [(tmp_path / attempt / LOG).read_text() for attempt in ("1", "2")] == ["first\n", "second\n"]


def test_what_is_written_by_name_after_the_output_was_filed_follows_it(tmp_path: Path) -> None:
    log = AttemptLog(tmp_path / "at-hand")
    path = log.begin(str(tmp_path / "1"))
    with path.open("a") as output:
        output.write("printed\n")
        output.flush()
        log.file()
        output.write("more\n")
    with path.open("a") as file:
        file.write("traceback\n")
    log.end()
    assert (tmp_path / "1" / LOG).read_text() == "printed\nmore\ntraceback\n"
    assert not path.exists()


def test_an_attempt_without_output_leaves_no_log(tmp_path: Path) -> None:
    log = AttemptLog(tmp_path / "at-hand")
    log.begin(str(tmp_path / "1")).touch()
    log.end()
    assert not (tmp_path / "1" / LOG).exists()
