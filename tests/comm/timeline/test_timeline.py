"""What stands in a trace, and what recording costs in memory and threads."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hpsearch_comm.errors import PeerLost
from hpsearch_comm.timeline import NoTimeline, Timeline, open_timeline, recorder
from tests.comm.timeline.traces import load, named


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The monotonic clock as the timeline sees it, in nanoseconds: set clock[0]."""
    now = [1_000_000]
    monkeypatch.setattr("time.monotonic_ns", lambda: now[0])
    return now


def test_an_operation_has_its_place_its_bytes_and_its_rates(tmp_path: Path, clock: list[int]) -> None:
    timeline = Timeline(tmp_path / "trace.json", 3, 4)
    clock[0] = 2_000_000
    with timeline.operation("allreduce", 8000, "ring", 17):
        clock[0] = 2_004_000
    timeline.close()
    events = load(tmp_path / "trace.rank3.json")
    (event,) = named(events, "allreduce")
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
    (process,) = named(events, "process_name")
    assert process["args"]["name"].startswith("rank 3 on ")
    assert [event["args"]["name"] for event in named(events, "thread_name")] == ["caller"]


def test_phases_lie_within_their_operation(tmp_path: Path, clock: list[int]) -> None:
    timeline = Timeline(tmp_path / "trace.json", 0, 2)
    with timeline.operation("allreduce", 8, "ring", 0):
        clock[0] += 1000
        with timeline.phase('reduce-"scatter"'):
            clock[0] += 2000
        clock[0] += 1000
    timeline.close()
    events = load(tmp_path / "trace.rank0.json")
    (whole,), (phase,) = named(events, "allreduce"), named(events, 'reduce-"scatter"')
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
    events = load(tmp_path / "trace.rank0.json")
    operations = named(events, "allreduce")
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
    assert named(events, "summary")[0]["args"] == summary
    assert "68%" in named(events, "process_labels")[0]["args"]["labels"]


def test_an_error_stands_in_the_operation(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "trace.json", 0, 2)
    with pytest.raises(PeerLost), timeline.operation("barrier", 0, "direct", 0):
        raise PeerLost("rank 1 is gone", 1)
    timeline.close()
    (event,) = named(load(tmp_path / "trace.rank0.json"), "barrier")
    assert event["args"]["error"] == "PeerLost"


def test_threads_have_rows_of_their_own(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "trace.json", 0, 2)

    def work_queue() -> None:
        timeline.queue_thread()
        with timeline.phase("in the work queue"):
            pass

    def stranger() -> None:
        with timeline.phase("elsewhere"):
            pass

    with timeline.phase("in the caller"):
        for work in (work_queue, stranger):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
    timeline.close()
    events = load(tmp_path / "trace.rank0.json")
    rows = {name: named(events, name)[0]["tid"] for name in ("in the caller", "in the work queue", "elsewhere")}
    names = {event["tid"]: event["args"]["name"] for event in named(events, "thread_name")}
    assert names[rows["in the caller"]] == "caller"
    assert names[rows["in the work queue"]] == "work queue"
    # The kernel may give the third thread the second one's identity, once that has ended.
    assert rows["elsewhere"] in names
    assert rows["elsewhere"] != rows["in the caller"]


def test_work_queues_of_several_groups_have_rows_of_their_own(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "trace.json", 0, 2)

    def work_queue(group: str) -> None:
        timeline.queue_thread(group)
        with timeline.operation("allreduce", 8, "direct", 0, 1, group):
            pass

    for group in ("", "/1", "/1"):  # the second work queue of a name takes the place of the first
        thread = threading.Thread(target=work_queue, args=(group,))
        thread.start()
        thread.join()
    timeline.close()
    events = load(tmp_path / "trace.rank0.json")
    names = {event["tid"]: event["args"]["name"] for event in named(events, "thread_name")}
    operations = [(names[event["tid"]], event["args"].get("group")) for event in named(events, "allreduce")]
    assert operations == [("work queue", None), ("work queue of /1", "/1"), ("work queue of /1", "/1")]


def test_times_are_this_ranks_and_the_offset_to_rank_0s_stands_beside_them(tmp_path: Path, clock: list[int]) -> None:
    timeline = Timeline(tmp_path / "trace.json", 1, 2)
    timeline.set_clock(-500_000, 12)
    clock[0] = 2_000_000
    with timeline.phase("reduce"):
        pass
    timeline.close()
    events = load(tmp_path / "trace.rank1.json")
    assert named(events, "reduce")[0]["ts"] == 2000.0
    assert named(events, "clock")[0]["args"] == {"nanoseconds": -500_000, "start": 12}


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_PENDING", 8)
    monkeypatch.setattr(recorder, "_FLUSH_SECONDS", 3600)
    timeline = Timeline(tmp_path / "trace.json", 0, 2)
    for _ in range(100):
        with timeline.phase("reduce"):
            pass
        assert len(timeline._queue) < 8
    timeline.close()
    assert len(named(load(tmp_path / "trace.rank0.json"), "reduce")) == 100


def test_events_of_many_threads_all_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_FLUSH_SECONDS", 0.001)
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
    assert len(named(load(tmp_path / "trace.rank0.json"), "barrier")) == 2000
    assert timeline.summary()["operations"] == 2000


def test_no_timeline_does_nothing() -> None:
    timeline = open_timeline(None, 0, 2)
    assert isinstance(timeline, NoTimeline)
    with timeline.operation("allreduce", 8, "ring", 0), timeline.phase("reduce"), timeline.backward():
        pass
    timeline.begin_backward()
    timeline.end_backward()
    timeline.queue_thread("/1")
    timeline.set_clock(3, 4)
    timeline.close()
    assert timeline.summary() == {}
    assert not timeline.on


def test_both_timelines_have_the_same_calls() -> None:
    public = {name for name in vars(Timeline) if not name.startswith("_")}
    assert public == {name for name in vars(NoTimeline) if not name.startswith("_")} - {"on"}


def test_closing_ends_the_writer_and_may_be_repeated(tmp_path: Path) -> None:
    before = threading.active_count()
    timeline = Timeline(tmp_path / "trace.json", 0, 2)
    assert threading.active_count() == before + 1
    timeline.close()
    timeline.close()
    assert threading.active_count() == before
