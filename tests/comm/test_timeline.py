"""The trace: what stands in it, what it costs in memory, and what becomes of it when things go wrong."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpsearch_comm import timeline as timeline_module
from hpsearch_comm.errors import ConfigurationError, PeerLost
from hpsearch_comm.timeline import NoTimeline, Timeline, open_timeline
from hpsearch_comm.trace_file import bring, holds, part_path


class _Threads:
    """A group of ranks that are threads, as far as a timeline needs one."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._meeting = threading.Barrier(size)
        self._values: list[Any] = [None] * size

    def rank(self, rank: int) -> _Rank:
        return _Rank(self, rank)

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self._values[rank] = json.loads(json.dumps(value))
        self._meeting.wait(30)
        everyone = list(self._values)
        self._meeting.wait(30)
        return everyone

    def run(self, work: Callable[[int], None]) -> None:
        failures: list[BaseException] = []

        def one(rank: int) -> None:
            try:
                work(rank)
            except BaseException as error:
                failures.append(error)
                self._meeting.abort()

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        if failures:
            raise failures[0]


class _Rank:
    def __init__(self, group: _Threads, rank: int) -> None:
        self._group = group
        self._rank = rank

    def allgather_object(self, value: Any) -> list[Any]:
        return self._group.exchange(self._rank, value)

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        return self._group.exchange(self._rank, value)[root]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The monotonic clock as the timeline sees it, in nanoseconds: set clock[0]."""
    now = [1_000_000]
    monkeypatch.setattr("time.monotonic_ns", lambda: now[0])
    return now


def _load(path: Path) -> list[dict[str, Any]]:
    text = path.read_text()
    if text.startswith("[") and not text.rstrip().endswith("]"):  # as Chrome's viewer does
        text = text.rstrip().rstrip(",") + "]"
    events = json.loads(text)
    return events if isinstance(events, list) else events["traceEvents"]


def _named(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in events if event["name"] == name]


def test_an_operation_has_its_place_its_bytes_and_its_rates(tmp_path: Path, clock: list[int]) -> None:
    timeline = Timeline(tmp_path / "trace.json", 3, 4)
    clock[0] = 2_000_000
    with timeline.operation("allreduce", 8000, "ring", 17):
        clock[0] = 2_004_000
    timeline.close()
    events = _load(tmp_path / "trace.rank3.json")
    (event,) = _named(events, "allreduce")
    assert (event["ph"], event["pid"], event["tid"]) == ("X", 3, 1)
    assert (event["ts"], event["dur"]) == (2000.0, 4.0)
    assert event["args"] == {
        "sequence": 17,
        "bytes": 8000,
        "algorithm": "ring",
        "algbw GB/s": 2.0,
        "busbw GB/s": 3.0,
        "asynchronous": False,
    }
    (process,) = _named(events, "process_name")
    assert process["args"]["name"].startswith("rank 3 on ")
    assert [event["args"]["name"] for event in _named(events, "thread_name")] == ["caller", "engine"]


def test_phases_lie_within_their_operation(tmp_path: Path, clock: list[int]) -> None:
    timeline = Timeline(tmp_path / "trace.json", 0, 2)
    with timeline.operation("allreduce", 8, "ring", 0):
        clock[0] += 1000
        with timeline.phase('reduce-"scatter"'):
            clock[0] += 2000
        clock[0] += 1000
    timeline.close()
    events = _load(tmp_path / "trace.rank0.json")
    (whole,), (phase,) = _named(events, "allreduce"), _named(events, 'reduce-"scatter"')
    assert (phase["ts"] - whole["ts"], phase["dur"], whole["dur"]) == (1.0, 2.0, 4.0)


def test_what_lay_within_the_backward_pass_is_hidden(tmp_path: Path, clock: list[int]) -> None:
    timeline = Timeline(tmp_path / "trace.json", 0, 2)
    clock[0] = 0
    called = 1_000
    with timeline.backward():
        clock[0] = 10_000_000
    clock[0] = 20_000_000
    timeline.begin_backward()
    timeline.begin_backward()  # within one: nothing
    clock[0] = 22_000_000
    with timeline.operation("allreduce", 8, "direct", 0, queued=called):
        clock[0] = 30_000_000
    with timeline.operation("allreduce", 8, "direct", 1, queued=called):
        clock[0] = 35_000_000
        timeline.end_backward()
        timeline.end_backward()  # outside of one: nothing
        clock[0] = 40_000_000
    with timeline.operation("allreduce", 8, "direct", 2, queued=called):
        clock[0] = 41_000_000
    timeline.begin_backward()
    with timeline.operation("allreduce", 8, "direct", 3):  # a blocking one holds the backward pass up
        clock[0] = 50_000_000
    timeline.end_backward()
    timeline.close()
    events = _load(tmp_path / "trace.rank0.json")
    operations = _named(events, "allreduce")
    assert [event["args"].get("hidden us") for event in operations] == [8000.0, 5000.0, 0.0, None]
    assert [event["args"].get("hidden share") for event in operations] == [1.0, 0.5, 0.0, None]
    summary = timeline.summary()
    assert summary["operations"] == 4
    assert summary["bytes"] == 32
    assert summary["seconds"] == pytest.approx(0.028)
    assert summary["asynchronous_seconds"] == pytest.approx(0.019)
    assert summary["hidden_seconds"] == pytest.approx(0.013)
    assert summary["hidden_share"] == pytest.approx(13 / 19)
    assert summary["backward_seconds"] == pytest.approx(0.009 + 0.015)  # at clock 0, no pass begins: 0 means none
    assert _named(events, "summary")[0]["args"] == summary
    assert "68%" in _named(events, "process_labels")[0]["args"]["labels"]


def test_an_error_stands_in_the_operation(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "trace.json", 0, 2)
    with pytest.raises(PeerLost), timeline.operation("barrier", 0, "direct", 0):
        raise PeerLost("rank 1 is gone", 1)
    timeline.close()
    (event,) = _named(_load(tmp_path / "trace.rank0.json"), "barrier")
    assert event["args"]["error"] == "PeerLost"


def test_counters_leave_out_what_json_cannot_hold(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "trace.json", 0, 2)
    timeline.counter("queue", length=3, age=float("nan"))
    timeline.close()
    (event,) = _named(_load(tmp_path / "trace.rank0.json"), "queue")
    assert event["ph"] == "C"
    assert event["args"] == {"length": 3}


def test_threads_have_rows_of_their_own(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "trace.json", 0, 2)

    def engine() -> None:
        timeline.engine_thread()
        with timeline.phase("in the engine"):
            pass

    def stranger() -> None:
        with timeline.phase("elsewhere"):
            pass

    with timeline.phase("in the caller"):
        for work in (engine, stranger):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
    timeline.close()
    events = _load(tmp_path / "trace.rank0.json")
    rows = {name: _named(events, name)[0]["tid"] for name in ("in the caller", "in the engine", "elsewhere")}
    names = {event["tid"]: event["args"]["name"] for event in _named(events, "thread_name")}
    assert names[rows["in the caller"]] == "caller"
    assert names[rows["in the engine"]] == "engine"
    # The kernel may give the third thread the second one's identity, once that has ended.
    assert rows["elsewhere"] in names
    assert rows["elsewhere"] != rows["in the caller"]


def test_the_clock_is_rank_0s(tmp_path: Path, clock: list[int]) -> None:
    timeline = Timeline(tmp_path / "trace.json", 1, 2)
    timeline.set_clock(-500_000)
    clock[0] = 2_000_000
    with timeline.phase("reduce"):
        pass
    timeline.close()
    assert _named(_load(tmp_path / "trace.rank1.json"), "reduce")[0]["ts"] == 1500.0


def test_parts_that_rank_0_sees_become_one_trace(tmp_path: Path) -> None:
    group = _Threads(3)
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
    assert sorted(event["pid"] for event in _named(trace["traceEvents"], "allreduce")) == [0, 1, 2]
    assert {name: totals["operations"] for name, totals in trace["otherData"].items()} == {
        "rank 0": 1,
        "rank 1": 1,
        "rank 2": 1,
    }
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["trace.json", "trace.rank7.json"]


def test_parts_on_other_disks_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpsearch_comm.trace_file._PIECE", 512)  # several pieces
    group = _Threads(3)
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
    events = _load(homes[0] / "trace.json")
    assert [sum(event["pid"] == rank for event in _named(events, "allreduce")) for rank in range(3)] == [1, 1, 40]
    assert [[entry.name for entry in home.iterdir()] for home in homes] == [["trace.json"], [], []]


def test_a_part_of_another_run_is_not_taken_for_ours(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "trace.json", 0, 1)
    timeline.close()
    part = part_path(tmp_path / "trace.json", 0)
    token = _named(_load(part), "token")[0]["args"]["token"]
    assert holds(part, token)
    assert not holds(part, "0" * 16)
    assert not holds(tmp_path / "none.json", token)


def test_a_part_that_cannot_be_written_still_ends_the_exchange(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    group = _Threads(2)
    part = tmp_path / "part.json"
    part.write_text("[\n")
    well = [True, True]

    def work(rank: int) -> None:
        well[rank] = bring(group.rank(rank), rank, 1, part, tmp_path / "nowhere" / "part.json")

    group.run(work)
    assert well == [False, True]
    assert "couldn't be written" in caplog.text


def test_a_trace_that_cannot_be_written_leaves_the_parts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    group = _Threads(2)
    path = tmp_path / "trace.json"
    timelines = [Timeline(path, rank, 2) for rank in range(2)]
    path.mkdir()  # since the start, something else has come to stand there
    group.run(lambda rank: timelines[rank].gather(group.rank(rank)))
    assert [len(_named(_load(part_path(path, rank)), "summary")) for rank in range(2)] == [1, 1]
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
    assert _load(tmp_path / "trace.rank0.json")


def test_texts_and_events_are_merged_too(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "trace.json", 0, 2)
    timeline.close()
    cut_off = '[\n{"name": "a", "ph": "X"},\n{"name": "b", "args": {}'
    assert timeline.merge([cut_off, [{"name": "c", "ph": "X"}]])
    assert [event["name"] for event in _load(tmp_path / "trace.json")] == ["a", "c"]


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
    assert _named(_load(tmp_path / "trace.rank0.json"), "summary")


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_module, "_PENDING", 8)
    monkeypatch.setattr(timeline_module, "_FLUSH_SECONDS", 3600)
    timeline = Timeline(tmp_path / "trace.json", 0, 2)
    for _ in range(100):
        with timeline.phase("reduce"):
            pass
        assert len(timeline._queue) < 8
    timeline.close()
    assert len(_named(_load(tmp_path / "trace.rank0.json"), "reduce")) == 100


def test_events_of_many_threads_all_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_module, "_FLUSH_SECONDS", 0.001)
    timeline = Timeline(tmp_path / "trace.json", 0, 2)

    def work() -> None:
        for number in range(500):
            with timeline.operation("barrier", 0, "direct", number):
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    timeline.close()
    assert len(_named(_load(tmp_path / "trace.rank0.json"), "barrier")) == 2000
    assert timeline.summary()["operations"] == 2000


_CRASH = """
import os, sys, time
from hpsearch_comm.timeline import Timeline
timeline = Timeline(sys.argv[1], 0, 2)
with timeline.phase("before the end"):
    pass
print("recorded", flush=True)
if sys.argv[2] == "fork":
    child = os.fork()
    with timeline.phase("in both"):
        pass
    if child:
        os.waitpid(child, 0)
elif sys.argv[2] == "raise":
    raise SystemExit(3)
else:
    time.sleep(60)
"""


def test_a_script_that_ends_without_closing_loses_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _CRASH, str(tmp_path / "trace.json"), "raise"]
    assert subprocess.run(command, stdout=subprocess.DEVNULL, check=False, timeout=60).returncode == 3
    events = _load(tmp_path / "trace.rank0.json")
    assert _named(events, "before the end")
    assert _named(events, "summary")


def test_a_forked_child_leaves_the_part_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _CRASH, str(tmp_path / "trace.json"), "fork"]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=60)
    events = json.loads((tmp_path / "trace.rank0.json").read_text())
    assert [len(_named(events, name)) for name in ("before the end", "in both", "summary")] == [1, 1, 1]


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
    assert _named(_load(part), "before the end")


def test_no_timeline_does_nothing() -> None:
    timeline = open_timeline(None, 0, 2)
    assert isinstance(timeline, NoTimeline)
    with timeline.operation("allreduce", 8, "ring", 0), timeline.phase("reduce"), timeline.backward():
        timeline.counter("queue", length=1)
    timeline.begin_backward()
    timeline.end_backward()
    timeline.engine_thread()
    timeline.set_clock(3)
    timeline.gather(_Threads(1).rank(0))
    timeline.close()
    assert timeline.summary() == {}
    assert not timeline.on


def test_both_timelines_have_the_same_calls() -> None:
    public = {name for name in vars(Timeline) if not name.startswith("_")}
    assert public - {"merge"} == {name for name in vars(NoTimeline) if not name.startswith("_")} - {"on"}


def test_closing_ends_the_writer_and_may_be_repeated(tmp_path: Path) -> None:
    before = threading.active_count()
    timeline = Timeline(tmp_path / "trace.json", 0, 2)
    assert threading.active_count() == before + 1
    timeline.close()
    timeline.close()
    assert threading.active_count() == before
