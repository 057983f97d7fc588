"""The trace that a group writes, with ranks on one host and on two."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import torch

from hpsearch_comm.benchmark.meeting import Blackboard
from hpsearch_comm.errors import ConfigurationError
from hpsearch_comm.group import Group


@pytest.mark.parametrize("hosts", [("a", "a"), ("a", "b")])
def test_a_group_writes_one_trace(tmp_path: Path, hosts: tuple[str, str]) -> None:
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
    trace = json.loads(path.read_text())
    for rank in range(2):
        blocking, asynchronous = [
            event for event in trace["traceEvents"] if event["name"] == "allreduce" and event["pid"] == rank
        ]
        assert blocking["args"]["bytes"] == asynchronous["args"]["bytes"] == 4000
        assert (blocking["args"]["asynchronous"], asynchronous["args"]["asynchronous"]) == (False, True)
        assert (blocking["tid"], asynchronous["tid"]) == (1, 2)
        assert trace["otherData"][f"rank {rank}"]["hidden_share"] == 1.0
    assert not list(tmp_path.glob("trace.rank*"))


def test_a_group_of_one_writes_a_trace(tmp_path: Path) -> None:
    with Group(0, 1, timeline=tmp_path / "trace.json") as group:
        group.allreduce(torch.ones(3))
    names = [event["name"] for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]]
    assert "allreduce" in names


def test_a_path_that_cannot_be_written_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="timeline"):
        Group(0, 1, timeline=tmp_path / "missing" / "trace.json")
