"""Logs of lanes, and the one that workers have together."""

from __future__ import annotations

from pathlib import Path

from hpsearch.worker.attempt import LaneLog


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
