"""The trace of ranks that are processes, held against the Trace Event Format that Chrome's viewer and Perfetto read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from hpsearch_comm.timeline.merging import merge
from tests.comm.process_ranks import ProcessRanks
from tests.comm.timeline.traced_ranks import STEPS


@pytest.fixture(scope="module")
def ranks() -> Iterator[ProcessRanks]:
    with ProcessRanks("tests.comm.timeline.traced_ranks") as server:
        yield server


@pytest.fixture(scope="module", params=[None, ["a", "b"]], ids=["one host", "two hosts"])
def trace(
    request: pytest.FixtureRequest, ranks: ProcessRanks, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    outcomes = ranks.call(2, "steps", hosts=request.param, timeline=str(path))
    assert [(outcome.code, outcome.error) for outcome in outcomes] == [(0, "")] * 2, outcomes
    parts = sorted(path.parent.iterdir())
    assert [part.name for part in parts] == ["trace.rank0.json", "trace.rank1.json"]
    assert merge(path, parts) == []
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def test_the_file_is_an_object_of_events(trace):
    assert set(trace) == {"traceEvents", "displayTimeUnit"}
    assert trace["displayTimeUnit"] in ("ms", "ns")


def test_every_event_has_the_fields_of_its_phase(trace):
    fields = {
        "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"},
        "i": {"name", "cat", "ph", "ts", "pid", "tid", "s", "args"},
        "M": {"name", "ph", "pid", "tid", "args"},
    }
    optional = {"X": {"args"}}
    for event in trace["traceEvents"]:
        phase = event["ph"]
        assert fields[phase] - optional.get(phase, set()) <= set(event) <= fields[phase], event
        assert event["pid"] in (0, 1)
        assert isinstance(event.get("tid", 0), int)
        assert event.get("s", "p") in ("g", "p", "t")
        assert event.get("dur", 0) >= 0


def test_ranks_and_rows_have_names(trace):
    metadata = [event for event in trace["traceEvents"] if event["ph"] == "M"]
    for rank in (0, 1):
        told = {event["name"]: event["args"] for event in metadata if event["pid"] == rank}
        assert told["process_name"]["name"].startswith(f"rank {rank} on ")
        assert told["process_sort_index"]["sort_index"] == rank
        assert isinstance(told["process_labels"]["labels"], str)
        rows = {
            event["tid"]: event["args"]["name"]
            for event in metadata
            if event["name"] == "thread_name" and event["pid"] == rank
        }
        assert sorted(rows.values()) == ["caller", "work queue", "work queue of /1"]
        assert {event["tid"] for event in trace["traceEvents"] if event["ph"] == "X"} == set(rows)


def test_the_spans_of_a_row_nest(trace):
    """Two of them lie apart, or one in the other: viewers draw spans that overlap otherwise in the wrong place."""
    rows: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            begin = round(event["ts"] * 1000)
            rows.setdefault((event["pid"], event["tid"]), []).append((begin, begin + round(event["dur"] * 1000)))
    assert len(rows) == 6
    for spans in rows.values():
        around: list[int] = []  # the ends of spans that the current one lies in
        for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while around and around[-1] <= begin:
                around.pop()
            assert not around or end <= around[-1]
            around.append(end)


def test_times_are_microseconds_of_one_clock(trace):
    """The barriers of a duplicate bound the ranks' clocks against each other: each ends after all have begun."""
    barriers: list[list[dict[str, Any]]] = [
        [event for event in trace["traceEvents"] if event["name"] == "barrier" and event["pid"] == rank]
        for rank in (0, 1)
    ]
    assert [len(events) for events in barriers] == [STEPS, STEPS]
    near = 1e5  # between hosts, clocks are known to half of the quickest of some rounds
    for mine, theirs in zip(*barriers, strict=True):
        assert mine["args"]["sequence"] == theirs["args"]["sequence"]
        assert mine["ts"] <= theirs["ts"] + theirs["dur"] + near
        assert theirs["ts"] <= mine["ts"] + mine["dur"] + near
    backward = sum(event["dur"] for event in trace["traceEvents"] if (event["name"], event["pid"]) == ("backward", 0))
    summary = next(event for event in trace["traceEvents"] if (event["name"], event["pid"]) == ("summary", 0))
    assert backward / 1e6 == pytest.approx(summary["args"]["backward_seconds"])
