"""The files of a timeline: parts that become one trace, and what becomes of them when things go wrong."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hpsearch_comm import timeline as timeline_module
from hpsearch_comm.errors import ConfigurationError, PeerLost
from hpsearch_comm.timeline import Timeline
from hpsearch_comm.trace_file import bring, holds, part_path
from tests.comm.traces import Exchanging, load, named


def test_parts_that_rank_0_sees_become_one_trace(tmp_path: Path) -> None:
    group = Exchanging(3)
    path = tmp_path / "trace.json"
    part_path(path, 7).write_text("[\n")  # of a larger run that crashed; it isn't ours to remove

    def work(rank: int) -> None:
        timeline = Timeline(path, rank, 3)
        with timeline.operation("allreduce", 8, "direct", 0):
            pass
        timeline.gather(group.rank(rank))
        with timeline.operation("allreduce", 8, "direct", 1):  # too late: dropped
            pass

    group.run(work)
    trace = json.loads(path.read_text())
    assert sorted(event["pid"] for event in named(trace["traceEvents"], "allreduce")) == [0, 1, 2]
    assert {name: totals["operations"] for name, totals in trace["otherData"].items()} == {
        "rank 0": 1,
        "rank 1": 1,
        "rank 2": 1,
    }
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["trace.json", "trace.rank7.json"]


def test_parts_on_other_disks_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpsearch_comm.trace_file._PIECE", 512)  # several pieces
    group = Exchanging(3)
    homes = [tmp_path / f"host{rank}" for rank in range(3)]

    def holds_nearby(path: Path, token: str) -> bool:
        return path.parent == homes[0] and holds(path, token)

    monkeypatch.setattr(timeline_module, "holds", holds_nearby)

    def work(rank: int) -> None:
        homes[rank].mkdir()
        timeline = Timeline(homes[rank] / "trace.json", rank, 3)
        for number in range(40 if rank == 2 else 1):
            with timeline.operation("allreduce", 8, "direct", number):
                pass
        timeline.gather(group.rank(rank))

    group.run(work)
    events = load(homes[0] / "trace.json")
    assert [sum(event["pid"] == rank for event in named(events, "allreduce")) for rank in range(3)] == [1, 1, 40]
    assert [[entry.name for entry in home.iterdir()] for home in homes] == [["trace.json"], [], []]


def test_a_part_of_another_run_is_not_taken_for_ours(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "trace.json", 0, 1)
    timeline.close()
    part = part_path(tmp_path / "trace.json", 0)
    token = named(load(part), "token")[0]["args"]["token"]
    assert holds(part, token)
    assert not holds(part, "0" * 16)
    assert not holds(tmp_path / "none.json", token)


def test_a_part_that_cannot_be_written_still_ends_the_exchange(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    group = Exchanging(2)
    part = tmp_path / "part.json"
    part.write_text("[\n")
    well = [True, True]

    def work(rank: int) -> None:
        well[rank] = bring(group.rank(rank), rank, 1, part, tmp_path / "nowhere" / "part.json")

    group.run(work)
    assert well == [False, True]
    assert "couldn't be written" in caplog.text


def test_a_trace_that_cannot_be_written_leaves_the_parts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    group = Exchanging(2)
    path = tmp_path / "trace.json"
    timelines = [Timeline(path, rank, 2) for rank in range(2)]
    path.mkdir()  # since the start, something else has come to stand there
    group.run(lambda rank: timelines[rank].gather(group.rank(rank)))
    assert [len(named(load(part_path(path, rank)), "summary")) for rank in range(2)] == [1, 1]
    assert "trace.rank*.json" in caplog.text
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["trace.json", "trace.rank0.json", "trace.rank1.json"]


def test_a_group_that_ends_on_the_way_leaves_the_parts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def allgather_object(self, value: Any) -> list[Any]:
            raise PeerLost("rank 1 is gone", 1)

        def broadcast_object(self, value: Any, root: int = 0) -> Any:
            raise AssertionError

    timeline = Timeline(tmp_path / "trace.json", 0, 2)
    timeline.gather(Broken())
    assert "rank 1 is gone" in caplog.text
    assert load(tmp_path / "trace.rank0.json")


def test_texts_and_events_are_merged_too(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "trace.json", 0, 2)
    timeline.close()
    cut_off = '[\n{"name": "a", "ph": "X"},\n{"name": "b", "args": {}'
    assert timeline.merge([cut_off, [{"name": "c", "ph": "X"}]])
    assert [event["name"] for event in load(tmp_path / "trace.json")] == ["a", "c"]


def test_paths_that_cannot_be_written_are_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"rank 2 .*No such file or directory"):
        Timeline(tmp_path / "missing" / "trace.json", 2, 4)
    with pytest.raises(ConfigurationError, match="got the directory"):
        Timeline(tmp_path, 0, 1)


def test_a_full_disk_costs_events_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeline = Timeline(tmp_path / "trace.json", 0, 2)

    def full(_: int, __: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr("hpsearch_comm.trace_file.os.write", full)
        with timeline.phase("one"):
            pass
        assert timeline.summary()["lost_events"] == 1
    with timeline.phase("two"):
        pass
    assert timeline.summary()["lost_events"] == 2
    timeline.close()
    assert caplog.text.count("cut short") == 1
    assert named(load(tmp_path / "trace.rank0.json"), "summary")


_CRASH = """
import os, sys, time
from hpsearch_comm.timeline import Timeline
timeline = Timeline(sys.argv[1], 0, 2)
with timeline.phase("before the end"):
    pass
print("recorded", flush=True)
if sys.argv[2] == "exit":
    child = os.fork()
    with timeline.phase("in both"):
        pass
    if child:
        os.waitpid(child, 0)
    raise SystemExit(3)
time.sleep(60)
"""


def test_a_script_that_exits_without_closing_loses_nothing_and_its_child_leaves_the_part_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _CRASH, str(tmp_path / "trace.json"), "exit"]
    assert subprocess.run(command, stdout=subprocess.DEVNULL, check=False, timeout=120).returncode == 3
    events = json.loads((tmp_path / "trace.rank0.json").read_text())
    assert [len(named(events, name)) for name in ("before the end", "in both", "summary")] == [1, 1, 1]


def test_the_part_of_a_killed_rank_loads(tmp_path: Path) -> None:
    part = tmp_path / "trace.rank0.json"
    command = [sys.executable, "-c", _CRASH, str(tmp_path / "trace.json"), "kill"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"recorded\n"
        deadline = time.monotonic() + 60
        while "before the end" not in part.read_text():  # written within half a second
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    assert named(load(part), "before the end")
