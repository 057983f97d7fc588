"""Where the output of an attempt or a lane is put, whenever it is filed."""

from __future__ import annotations

from pathlib import Path

from hpsearch.worker.attempt import LOG, AttemptLog, LaneLog


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


def print_to(log: LaneLog, text: str) -> None:
    with log.path.open("a") as file:
        file.write(text)
    log.file()


def test_what_several_workers_print_into_one_log_stays(tmp_path: Path) -> None:
    one, other, later = (
        LaneLog(tmp_path / f"at-hand-{number}", tmp_path / "packs", shared=True) for number in range(3)
    )
    texts = ["a 1\n", "a 2\n", "b 1\n", "a 3\n", "c 1\n", "b 2\n"]
    for log, text in zip((one, one, other, one, later, other), texts, strict=True):
        print_to(log, text)
    assert (tmp_path / "packs" / "output.log").read_text() == "".join(texts)
    assert [path.name for path in tmp_path.iterdir()] == ["packs"]


def test_a_lane_has_nothing_of_those_that_wrote_before_it(tmp_path: Path) -> None:
    at_hand = tmp_path / "at-hand"
    one, other = LaneLog(at_hand, tmp_path / "one"), LaneLog(at_hand, tmp_path / "other")
    for log, text in ((one, "1"), (other, ""), (one, "2"), (other, "3")):
        print_to(log, text)
    assert [(tmp_path / name / "output.log").read_text() for name in ("one", "other")] == ["12", "3"]
