"""The files of a timeline: who may read them, what they replace, and how the parts of all ranks become one trace."""

from __future__ import annotations

import json
import logging
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpsearch_comm.errors import ConfigurationError
from hpsearch_comm.timeline import Timeline
from hpsearch_comm.timeline.__main__ import main
from hpsearch_comm.timeline.merging import merge
from hpsearch_comm.timeline.part_file import part_path
from tests.comm.timeline.traces import load, named


def parts_of(path: Path, *offsets: int | None, start: int = 7) -> list[Path]:
    """Write the parts of as many ranks, each with an operation and its offset to rank 0's clock."""
    for rank, offset in enumerate(offsets):
        timeline = Timeline(path, rank, len(offsets))
        if offset is not None:
            timeline.set_clock(offset, start)
        with timeline.operation("allreduce", 8, "direct", 0):
            pass
        timeline.close()
    return [part_path(path, rank) for rank in range(len(offsets))]


def test_a_link_in_a_parts_place_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    victim.chmod(0o600)
    for rank, target in enumerate((victim, tmp_path / "nowhere")):
        part_path(tmp_path / "trace.json", rank).symlink_to(target)
    for part in parts_of(tmp_path / "trace.json", 0, 0):
        assert not part.is_symlink()
        assert named(load(part), "allreduce")
    assert victim.read_text() == "precious"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["trace.rank0.json", "trace.rank1.json", "victim"]


def test_another_name_of_a_part_keeps_its_content(tmp_path: Path) -> None:
    part = part_path(tmp_path / "trace.json", 0)
    part.write_text("of an earlier run")
    other = tmp_path / "other"
    other.hardlink_to(part)
    parts_of(tmp_path / "trace.json", 0)
    assert other.read_text() == "of an earlier run"
    assert named(load(part), "allreduce")


def test_files_are_for_their_user_alone(tmp_path: Path) -> None:
    old = part_path(tmp_path / "trace.json", 0)
    old.touch(0o644)
    umask = os.umask(0)
    try:
        parts = parts_of(tmp_path / "trace.json", 0, 0)
        merge(tmp_path / "trace.json", parts)
    finally:
        os.umask(umask)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_parts_become_one_trace_on_the_clock_of_rank_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic_ns", lambda: 2_000_000)
    parts = parts_of(tmp_path / "trace.json", 0, -500_000, 1_234)
    assert merge(tmp_path / "one.json", parts[::-1]) == []
    trace = json.loads((tmp_path / "one.json").read_text())
    assert [(event["pid"], event["ts"]) for event in named(trace["traceEvents"], "allreduce")] == [
        (0, 2000.0),
        (1, 1500.0),
        (2, 2001.234),
    ]
    assert all(part.exists() for part in parts)


@given(cut=st.integers(0, 2000))
def test_a_part_that_is_cut_off_anywhere_is_merged_as_far_as_it_goes_or_refused(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    (part,) = parts_of(folder / "trace.json", 0)
    text = part.read_bytes()
    part.write_bytes(text[:cut])
    lines = [json.loads(line.rstrip(b",")) for line in text[:cut].split(b"\n")[1:-1] if line != b"]"]
    try:
        merge(folder / "trace.json", [part])
    except ConfigurationError:
        assert not lines
        return
    assert load(folder / "trace.json") == lines


def test_the_command_merges_and_names_the_ranks_that_lack(tmp_path: Path) -> None:
    parts = parts_of(tmp_path / "trace.json", 0, 0, 0)
    command = [sys.executable, "-W", "error", "-m", "hpsearch_comm.timeline", "merge"]
    paths = (tmp_path / "trace.json", parts[0], parts[2])
    ran = subprocess.run([*command, *map(str, paths)], capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, ran.stdout) == (0, "")
    assert ran.stderr == "the trace lacks the ranks 1: no part of theirs was given\n"
    assert {event["pid"] for event in load(tmp_path / "trace.json")} == {0, 2}


def test_parts_that_do_not_belong_together_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*paths: Path) -> str:
        before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
        assert main(["merge", *map(str, paths)]) == 2
        assert {path: path.read_bytes() for path in tmp_path.rglob("*.json")} == before
        return capsys.readouterr().err

    out = tmp_path / "one.json"
    of_two = parts_of(tmp_path / "trace.json", 0, 0)
    of_three = parts_of(tmp_path / "other.json", 0, 0, None)
    earlier = parts_of(tmp_path / "earlier.json", 0, 0, start=6)
    assert "got two of rank 0" in refused(out, of_two[0], of_three[0])
    assert "one was left by an earlier run" in refused(out, of_two[0], earlier[1])
    assert "before the ranks had compared their clocks" in refused(out, *of_three)
    assert "the first path must be that of the trace to write" in refused(*of_two)
    assert "No such file" in refused(out, tmp_path / "none.json")
    strange = tmp_path / "strange.json"
    for text in ("", "[\n]\n", '{"name": "part"}\n', "\0\n", '[\n{"name": "summary", "args": {}}\n', "[[[[\n"):
        strange.write_text(text)
        assert "strange.json must" in refused(out, strange)
    strange.write_text(of_two[0].read_text().replace('"dur"', "dur"))
    assert "must have an event on each line" in refused(out, strange)
    whole = of_two[0].read_text()
    for mine, theirs in (
        ('"nanoseconds": 0', '"nanoseconds": Infinity'),
        ('"size": 2', '"size": 1e999'),
        ('"size": 2', '"size": 1000000000000'),
        ('"size": 2', '"size": 0'),
        ('"ts": ', '"ts": "noon", "was": '),
        ('"ts": ', f'"ts": 1{"0" * 400}, "was": '),
        ('"dur": ', '"dur": NaN, "was": '),
        ("]\n", f"{'[' * 100_000}\n]\n"),
    ):
        strange.write_text(whole.replace(mine, theirs))
        assert strange.read_text() != whole
        assert "strange.json must" in refused(out, strange, of_two[1])
    strange.write_text(whole.replace('"size": 2', '"size": 3'))
    assert "must be those of one run" in refused(out, strange, of_two[1])
    assert {path.suffix for path in tmp_path.iterdir()} == {".json"}


def test_phases_may_have_the_names_of_our_own_events(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "trace.json", 0, 1)
    for name in ("part", "clock", "summary"):
        with timeline.phase(name):
            pass
    with timeline.phase("reduce"):
        pass
    timeline.close()
    part = part_path(tmp_path / "trace.json", 0)
    merge(tmp_path / "one.json", [part])
    assert named(load(tmp_path / "one.json"), "reduce") == named(load(part), "reduce")


def test_paths_that_cannot_be_written_are_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"rank 2 .*No such file or directory"):
        Timeline(tmp_path / "missing" / "trace.json", 2, 4)
    with pytest.raises(ConfigurationError, match="got the directory"):
        Timeline(tmp_path, 0, 1)


def test_a_full_disk_costs_events_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeline = Timeline(tmp_path / "trace.json", 0, 2)

    def full(_: int, __: object, ___: int) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr("hpsearch_comm.timeline.part_file.os.pwrite", full)
        with timeline.phase("one"):
            pass
        assert timeline.summary()["lost_events"] == 1
    with timeline.phase("two"):
        pass
    assert timeline.summary()["lost_events"] == 2
    timeline.close()
    assert caplog.text.count("cut short") == 1
    assert named(load(tmp_path / "trace.rank0.json"), "summary")


def test_a_disk_that_fills_leaves_no_half_of_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = Timeline(tmp_path / "trace.json", 0, 1)
    write = os.pwrite

    def filling(file: int, data: memoryview, offset: int) -> int:
        monkeypatch.setattr("hpsearch_comm.timeline.part_file.os.pwrite", full)
        return write(file, data[:20], offset)

    def full(_: int, __: object, ___: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hpsearch_comm.timeline.part_file.os.pwrite", filling)
    with timeline.phase("half"):
        pass
    timeline.summary()
    monkeypatch.setattr("hpsearch_comm.timeline.part_file.os.pwrite", write)
    timeline.close()
    events = json.loads(part_path(tmp_path / "trace.json", 0).read_text())
    assert not named(events, "half")
    assert named(events, "summary")


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


@pytest.mark.exhaustive
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
