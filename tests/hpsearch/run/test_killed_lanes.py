"""kill -9 of a process that trains trials as lanes, resume with another number, and the table is the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import hpsearch
from hpsearch.events import Dropped, Finished
from hpsearch.journal.directory import StudyDirectory
from hpsearch.trainable.addresses import pack_of, path_of
from tests.hpsearch.support.files import files_below
from tests.hpsearch.support.fork_server import ForkServer
from tests.hpsearch.support.lane_sweeps import results, table
from tests.hpsearch.support.scripted import events_of

Told = tuple[str, object]


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer("tests.hpsearch.support.killed_lanes") as server:
        yield server


@pytest.fixture(scope="module")
def whole(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Told:
    """What comes of it with one trial at a time, and nobody is killed."""
    study = tmp_path_factory.mktemp("whole") / "study"
    assert server.call("begin", str(study), 1) == 0
    return told(study)


def told(path: Path) -> Told:
    """Return the results of a sweep, after checking what it left behind."""
    study = hpsearch.load(path)
    assert study.state == "finished"
    kept = {str(row.checkpoint) for row in study.trials if row.checkpoint is not None}
    needed = {path_of(address) for address in study._journaled.records.checkpoints()}
    assert kept <= needed
    assert not StudyDirectory(path).packs()
    assert {str(place.relative_to(path)) for place in StudyDirectory(path).checkpoints()} == needed
    assert not [name for name in files_below(path) if name.endswith(".part") or "/.output-" in name]
    return table(study), results(study)


def packs_named(path: Path) -> set[str]:
    named = (event.checkpoint for event in events_of(path) if isinstance(event, Finished))
    return {pack for address in named if address is not None and (pack := pack_of(address)) is not None}


@pytest.mark.exhaustive
@pytest.mark.parametrize("lanes", [7, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_lanes_leave_what_one_trial_at_a_time_leaves(server, whole, tmp_path, lanes):
    assert server.call("begin", str(tmp_path / "study"), lanes) == 0
    assert told(tmp_path / "study") == whole
    assert packs_named(tmp_path / "study")


@pytest.mark.parametrize(
    ("first", "second", "numbers"),
    [
        (7, 1, (2,)),
        pytest.param(7, 5, (1, 3), marks=pytest.mark.exhaustive),
        pytest.param(3, 7, range(1, 5), marks=pytest.mark.exhaustive),
    ],
)
def test_killed_between_a_pack_and_its_ends_that_pack_goes(server, whole, tmp_path, first, second, numbers):
    for number in numbers:
        path = tmp_path / str(number) / "study"
        assert server.call("begin_and_die_after_pack", str(path), first, number) == -signal.SIGKILL
        place = StudyDirectory(path)
        unheard = [pack for pack in place.packs() if str(pack.relative_to(path)) not in packs_named(path)]
        assert len(unheard) == 1
        assert server.call("begin", str(path), second) == 0
        assert told(path) == whole


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("first", "second", "numbers"),
    [
        (7, 4, (24,)),
        pytest.param(7, 1, (8, 40), marks=pytest.mark.exhaustive),
        pytest.param(3, 7, range(4, 48, 4), marks=pytest.mark.exhaustive),
    ],
)
def test_killed_before_anything_follows_from_an_event(server, whole, tmp_path, first, second, numbers):
    for number in numbers:
        path = tmp_path / str(number) / "study"
        assert server.call("begin_and_die_after_event", str(path), first, number) == -signal.SIGKILL
        assert hpsearch.load(path).state == "killed"
        assert server.call("begin", str(path), second) == 0
        assert told(path) == whole


@pytest.mark.exhaustive
@pytest.mark.parametrize("second", [pytest.param(1, marks=pytest.mark.exhaustive), 7])
def test_a_pack_that_is_damaged_costs_its_trials_their_beginning(server, whole, tmp_path, second):
    path = tmp_path / "study"
    assert server.call("begin_and_die_after_pack", str(path), 7, 3) == -signal.SIGKILL
    damaged = [pack for pack in StudyDirectory(path).packs() if str(pack.relative_to(path)) in packs_named(path)]
    assert damaged
    for pack in damaged:
        os.truncate(pack, pack.stat().st_size // 2)
    assert server.call("begin", str(path), second) == 0
    assert told(path)[0] == whole[0]
    dropped = [event.reason for event in events_of(path) if isinstance(event, Dropped)]
    assert dropped
    for reason in dropped:
        assert any(f"/hpsearch-checkpoint-1 in {pack} is damaged" in reason for pack in damaged)
