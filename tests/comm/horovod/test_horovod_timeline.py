"""hpsearch_comm.horovod's traces: what rank 0 writes of the job's operations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.comm.horovod.horovod_ranks import HorovodRanks


@pytest.fixture(scope="module")
def ranks() -> Iterator[HorovodRanks]:
    with HorovodRanks(2, "tests.comm.horovod.horovod_traces") as ranks:
        yield ranks


def spans_of(path: Path) -> list[tuple[str, str]]:
    """Return each span's row and name, ordered by start, and check that the spans of a row don't overlap."""
    events: list[dict[str, Any]] = json.loads(path.read_text())
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    spans = sorted((event for event in events if event["ph"] == "X"), key=lambda event: event["ts"])
    ends: dict[int, float] = {}
    for span in spans:
        assert span["ts"] >= ends.get(span["tid"], 0.0) - 1e-3
        ends[span["tid"]] = span["ts"] + span["dur"]
    return [(rows[span["tid"]], span["name"]) for span in spans]


@pytest.mark.parametrize("mark_cycles", [False, True])
def test_each_operation_has_its_negotiation_and_its_run(ranks, tmp_path, mark_cycles):
    path = tmp_path / "trace.json"
    ranks.call("some_operations", str(path), mark_cycles)
    spans = spans_of(path)
    of = {row: [name for other, name in spans if other == row] for row, _ in spans}
    both = ["NEGOTIATE_ALLREDUCE", "ALLREDUCE"]
    assert of.pop("cycles", []) == ["CYCLE_START"] * sum(name == "CYCLE_START" for _, name in spans)
    assert ("cycles", "CYCLE_START") in spans or not mark_cycles
    assert of == {
        "allreduce.loss": both * 2,
        "allgather.rows": ["NEGOTIATE_ALLGATHER", "ALLGATHER"],
        **{f"allreduce.layer {number}": both for number in range(3)},
        "allreduce.unlike": ["NEGOTIATE_ALLREDUCE"],
    }
    assert "start_time_since_epoch_in_micros" in path.read_text()
    assert list(tmp_path.iterdir()) == [path]  # nothing of rank 1


def test_what_is_under_way_at_the_end_is_there(ranks, tmp_path):
    path = tmp_path / "trace.json"
    ranks.call("stopped_while_under_way", str(path))
    assert spans_of(path) == [("allreduce.late", "NEGOTIATE_ALLREDUCE")]


def test_a_second_trace_ends_the_first(ranks, tmp_path):
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    ranks.call("two_in_turn", str(first), str(second))
    for path in (first, second):
        assert {row for row, _ in spans_of(path)} == {f"allreduce.{path}"}


def test_a_folder_is_no_trace(ranks, tmp_path):
    for text in ranks.call("refused_path", str(tmp_path)):
        assert f"must be a file, got the directory {tmp_path}" in text


def test_the_environment_can_ask_for_one(tmp_path):
    path = tmp_path / "trace.json"
    with HorovodRanks(
        2, "tests.comm.horovod.horovod_traces", HOROVOD_TIMELINE=str(path), HOROVOD_TIMELINE_MARK_CYCLES="1"
    ) as ranks:
        ranks.call("one_allreduce")
    assert ("allreduce.alone", "ALLREDUCE") in spans_of(path)
    assert ("cycles", "CYCLE_START") in spans_of(path)
