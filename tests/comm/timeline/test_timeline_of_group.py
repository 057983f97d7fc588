"""The trace that a group writes, with ranks on one host and on two."""

from __future__ import annotations

import gc
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from hpsearch_comm.errors import ConfigurationError, MismatchError
from hpsearch_comm.group import Group
from hpsearch_comm.operations.work import Handle
from hpsearch_comm.timeline.merging import merge
from tests.benchmarks.collectives.meeting import Blackboard


@pytest.mark.parametrize("hosts", [("a", "a"), ("a", "b")])
def test_the_ranks_of_a_group_write_parts_of_one_trace(tmp_path: Path, hosts: tuple[str, str]) -> None:
    path = tmp_path / "trace.json"
    failures: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            with Group(
                rank,
                2,
                rendezvous=Blackboard(tmp_path, "group"),
                secret=bytes(32),
                interface="lo",
                host=hosts[rank],
                timeline=path,
            ) as group:
                tensor = torch.ones(1000)
                group.allreduce(tensor)
                with group.timeline.backward():
                    group.allreduce_async(tensor).wait(60)
                assert group.timeline.summary()["hidden_share"] == 1.0
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert sorted(file.name for file in tmp_path.glob("trace*")) == ["trace.rank0.json", "trace.rank1.json"]
    assert merge(path, list(tmp_path.glob("trace.rank*.json"))) == []
    trace = json.loads(path.read_text())
    for rank in range(2):
        blocking, asynchronous = [
            event for event in trace["traceEvents"] if event["name"] == "allreduce" and event["pid"] == rank
        ]
        assert blocking["args"]["bytes"] == asynchronous["args"]["bytes"] == 4000
        assert (blocking["args"]["asynchronous"], asynchronous["args"]["asynchronous"]) == (False, True)
        assert (blocking["tid"], asynchronous["tid"]) == (1, 2)
        summary = next(e for e in trace["traceEvents"] if (e["name"], e["pid"]) == ("summary", rank))
        assert summary["args"]["hidden_share"] == 1.0


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_a_timeline_on_some_ranks_only_ends_the_group(tmp_path: Path, transport: str) -> None:
    messages: list[str] = []

    def work(rank: int) -> None:
        with (
            pytest.raises(MismatchError) as caught,
            Group(
                rank,
                2,
                rendezvous=Blackboard(tmp_path, "group"),
                secret=bytes(32),
                interface="lo",
                transport=transport,
                timeline=None if rank else tmp_path / "trace.json",
            ) as group,
        ):
            group.allgather_object("mine")
        messages.append(str(caught.value))

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert ["rank 0 calls compare_clocks 0" in message for message in messages] == [True, True]


def test_a_peer_can_have_no_file_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    precious = tmp_path / "precious"
    precious.touch()

    def lying(group: Group, value: Any) -> list[Any]:
        return [value, [str(precious), "", {}]]

    group = Group(0, 1, timeline=tmp_path / "trace.json")
    monkeypatch.setattr(Group, "allgather_object", lying)
    monkeypatch.setattr(Group, "gather_in", lambda group, _step, value: lying(group, value))
    group.close()
    assert precious.exists()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["precious", "trace.rank0.json"]


def test_a_group_of_one_writes_a_part(tmp_path: Path) -> None:
    with Group(0, 1, timeline=tmp_path / "trace.json") as group:
        group.allreduce(torch.ones(3))
    names = [event["name"] for event in json.loads((tmp_path / "trace.rank0.json").read_text())]
    assert "allreduce" in names


def test_a_duplicate_stands_in_the_same_trace_until_its_group_is_closed(tmp_path: Path) -> None:
    group = Group(0, 1, timeline=tmp_path / "trace.json")
    duplicate = group.duplicate()
    assert duplicate.timeline is group.timeline
    duplicate.allreduce(torch.ones(3))
    duplicate.allreduce_async(torch.ones(3)).wait()
    with duplicate.duplicate() as another:
        another.allreduce_async(torch.ones(3)).wait()
    assert group.timeline.on
    group.allreduce(torch.ones(3))
    group.close()
    duplicate.allreduce(torch.ones(3))  # too late for the trace
    duplicate.close()
    events = json.loads((tmp_path / "trace.rank0.json").read_text())
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    operations = [event for event in events if event["name"] == "allreduce"]
    assert [(names[event["tid"]], event["args"].get("group")) for event in operations] == [
        ("caller", "/1"),
        ("work queue of /1", "/1"),
        ("work queue of /1/1", "/1/1"),
        ("caller", None),
    ]


def test_the_duplicates_of_a_group_without_a_timeline_have_none() -> None:
    with Group(0, 1) as group, group.duplicate() as duplicate:
        assert not duplicate.timeline.on


def test_a_blocking_operation_behind_an_asynchronous_one_hides_nothing(tmp_path: Path) -> None:
    with Group(0, 1, timeline=tmp_path / "trace.json") as group:
        begun, under_way = threading.Event(), threading.Event()
        group.allgather_async(torch.ones(3))
        waiting = group._work_queue
        for task in (begun.set, under_way.wait):
            waiting._last = Handle("a pause")
            waiting._tasks.put((waiting._last, task))
        begun.wait()
        while not waiting._tasks.empty():  # until the pause is under way, and nothing else is queued
            threading.Event().wait(0.01)
        caller = threading.Thread(target=group.allreduce, args=(torch.ones(3),))
        caller.start()
        while waiting._tasks.empty():
            threading.Event().wait(0.01)
        under_way.set()
        caller.join()
    events = json.loads((tmp_path / "trace.rank0.json").read_text())
    by_name = {event["name"]: event for event in events}
    assert by_name["allgather"]["args"]["asynchronous"]
    assert not by_name["allreduce"]["args"]["asynchronous"]
    assert by_name["allreduce"]["tid"] == by_name["allgather"]["tid"]


def test_a_group_that_is_forgotten_closes_its_part(tmp_path: Path) -> None:
    threads = threading.active_count()
    group = Group(0, 1, timeline=tmp_path / "trace.json")
    group.allreduce_async(torch.ones(3))
    del group
    gc.collect()
    assert threading.active_count() == threads
    events = json.loads((tmp_path / "trace.rank0.json").read_text())
    assert [event["name"] for event in events if event["name"] in ("allreduce", "summary")] == ["allreduce", "summary"]


def test_a_path_that_cannot_be_written_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="timeline"):
        Group(0, 1, timeline=tmp_path / "missing" / "trace.json")
