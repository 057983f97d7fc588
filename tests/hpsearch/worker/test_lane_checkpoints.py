"""Checkpoints of lanes that end in the same round: in one file, or where that can't be each by itself."""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hpsearch_trainers.lanes
from hpsearch.errors import UnwritableError
from hpsearch.objective import Metric, Objective
from hpsearch.task import Result
from hpsearch.trainable import random_state
from hpsearch.trainable.addresses import in_pack, path_of
from hpsearch.trainable.checkpoints import read_random_state, read_state, user_path
from hpsearch.trial import Segment, Trial
from hpsearch.worker.job import Job
from hpsearch.worker.worker import Worker
from hpsearch_trainers.lanes import Fuser
from hpsearch_trainers.lanes.bits import same_bits
from tests.hpsearch.support.files import files_below
from tests.hpsearch.support.segments import Listening


def pack(count: int) -> str:
    return f"trials/packs/00000-1-2x{count}.zip"


@pytest.fixture(autouse=True)
def fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fuse whatever can be, also where it takes longer than each alone: where generators stand depends on it."""
    monkeypatch.setattr(hpsearch_trainers.lanes, "Fuser", functools.partial(Fuser, fewest=2))


def place(number: int, iteration: int = 2, attempt: int = 1) -> str:
    return f"trials/{number:05d}/{attempt}/hpsearch-checkpoint-{iteration}"


def worker(root: Path, **given: Any) -> Worker:
    (root / "trials").mkdir(parents=True, exist_ok=True)
    trainable = "tests.hpsearch.support.lane_trainables:Small"
    options: dict[str, Any] = {"save_every": None, "lanes": 5, **given}
    return Worker(Job(str(root), "lanes", trainable, (), Objective(Metric("loss")), threads=1, **options), root)


def params(fault: str) -> dict[str, Any]:
    return {"lr": 0.1, "hidden": 24, "dropout": 0.2, "fault": fault}


def enter(many: Worker, number: int, end: int, fault: str = "", former: str | None = None, start: int = 0) -> None:
    trial = Trial(number, params(fault), number, "random")
    segment = Segment(number, start, end, former, 1 if former is None else 2, 1)
    many.enter(trial, segment, Listening(), None)


def rounds(many: Worker, count: int) -> dict[int, Result]:
    """Train for so many epochs; give what came of those that ended."""
    return {ended.trial: ended for _ in range(count) for ended in many.round()}


def run(root: Path, ends: Sequence[int], faults: Sequence[str] = (), **given: Any) -> dict[int, Result]:
    many = worker(root, **given)
    for number, end in enumerate(ends):
        enter(many, number, end, faults[number] if faults else "")
    ended = rounds(many, max(ends))
    many.close()
    return ended


def checkpoint_files(root: Path) -> list[str]:
    return [name for name in files_below(root) if not name.endswith(".log")]


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """The checkpoints of five trials, each of which wrote its own."""
    root = tmp_path / "alone"
    run(root, [2] * 5, packs=False)
    return root


def test_those_that_end_together_lie_in_one_file(tmp_path: Path, alone: Path) -> None:
    ended = run(tmp_path / "study", [2, 2, 2])
    assert {number: result.checkpoint for number, result in ended.items()} == {
        number: in_pack(pack(3), place(number)) for number in range(3)
    }
    assert checkpoint_files(tmp_path / "study") == [pack(3)]
    for number, result in ended.items():
        address = tmp_path / "study" / str(result.checkpoint)
        assert same_bits(read_state(address), read_state(alone / place(number)))
        assert same_bits(read_random_state(address), read_random_state(alone / place(number)))
        user_path(address)
        assert files_below(tmp_path / "study" / place(number)).keys() == files_below(alone / place(number)).keys()


def test_one_that_ends_by_itself_lies_at_its_place(tmp_path: Path) -> None:
    ended = run(tmp_path, [1, 2, 3, 3])
    assert [ended[number].checkpoint for number in range(4)] == [
        place(0, 1),
        place(1, 2),
        in_pack("trials/packs/00002-1-3x2.zip", place(2, 3)),
        in_pack("trials/packs/00002-1-3x2.zip", place(3, 3)),
    ]


def test_what_is_saved_on_the_way_lies_at_its_place(tmp_path: Path) -> None:
    run(tmp_path, [2, 2], save_every=1)
    own = [f"{place(number, 1)}/{name}" for number in range(2) for name in ("manifest.json", "random.pt", "state.pt")]
    assert checkpoint_files(tmp_path) == [*own, pack(2)]


def test_where_all_are_kept_each_lies_at_its_place(tmp_path: Path) -> None:
    ended = run(tmp_path, [2, 2], packs=False)
    assert [ended[number].checkpoint for number in range(2)] == [place(0), place(1)]


def test_a_large_state_waits_for_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpsearch.worker.lane._LARGEST_KEPT", 100)
    ended = run(tmp_path, [2, 2])
    assert [ended[number].checkpoint for number in range(2)] == [place(0), place(1)]


def test_a_state_that_cant_be_saved_fails_its_own_trial(tmp_path: Path) -> None:
    ended = run(tmp_path, [2, 2, 2], ("", "state", ""))
    failures = [ended[number].failure for number in range(3)]
    assert [failure and failure.kind for failure in failures] == [None, "contract", None]
    assert failures[1] is not None
    assert 'state["odd"]: function can\'t be read back' in failures[1].message
    assert ended[1].checkpoint is None
    assert [ended[number].checkpoint for number in (0, 2)] == [in_pack(pack(2), place(number)) for number in (0, 2)]
    assert checkpoint_files(tmp_path) == [pack(2)]


def test_a_trial_that_fails_at_its_end_is_in_no_file(tmp_path: Path) -> None:
    ended = run(tmp_path, [2, 2, 2], ("", "step", ""))
    assert ended[1].failure is not None
    assert path_of(str(ended[2].checkpoint)) == place(2)
    with pytest.raises(Exception, match=r"00000-1-2x2\.zip is damaged"):
        read_state(tmp_path / in_pack(pack(2), place(1)))


def test_a_trial_that_fails_behind_its_last_report_is_in_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[None] = []

    def restore(state: random_state.RandomState) -> None:
        calls.append(None)
        if len(calls) == 2:
            raise RuntimeError("no such generator")
        random_state.restore(state)

    generators = SimpleNamespace(capture=random_state.capture, restore=restore)
    monkeypatch.setattr("hpsearch.trainable.running_trial.random_state", generators)
    ended = run(tmp_path, [2, 2, 2])
    assert [ended[number].checkpoint for number in range(3)] == [
        in_pack(pack(2), place(0)),
        None,
        in_pack(pack(2), place(2)),
    ]
    assert ended[1].failure is not None
    assert "no such generator" in ended[1].failure.message


def test_where_one_file_cant_be_written_each_is_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise UnwritableError("too many open files")

    monkeypatch.setattr("hpsearch.trainable.checkpoints.write_pack", refused)
    ended = run(tmp_path, [2, 2])
    assert [(ended[number].checkpoint, ended[number].failure) for number in range(2)] == [
        (place(0), None),
        (place(1), None),
    ]
    assert read_state(tmp_path / place(1))["epoch"] == 2


def test_a_full_disk_is_the_storages_fault_and_no_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    ended = run(tmp_path, [2, 2])
    failures = [ended[number].failure for number in range(2)]
    assert [failure and failure.kind for failure in failures] == ["storage"] * 2
    assert [ended[number].checkpoint for number in range(2)] == [None, None]
    assert checkpoint_files(tmp_path) == []


def test_a_trial_that_goes_on_finds_its_object_by_its_place(tmp_path: Path, alone: Path) -> None:
    """It is told of the checkpoint's address by whoever knows where it lies, and may lie elsewhere by then."""
    many = worker(tmp_path / "study")
    for number in range(3):
        enter(many, number, 1)
    first = rounds(many, 1)
    (tmp_path / "study" / "trials" / "packs" / "00000-1-1x3.zip").unlink()
    formers = [str(first[0].checkpoint), path_of(str(first[1].checkpoint)), f"{first[2].checkpoint}"]
    for number, former in enumerate(formers):
        enter(many, number, 2, former=former, start=1)
    second = rounds(many, 1)
    many.close()
    for number, result in second.items():
        assert result.failure is None
        assert same_bits(read_state(tmp_path / "study" / str(result.checkpoint)), read_state(alone / place(number)))


def test_another_worker_goes_on_from_the_pack(tmp_path: Path, alone: Path) -> None:
    study = tmp_path / "study"
    first = run(study, [1, 1])
    one, many = worker(study, lanes=1), worker(study)
    for number in range(2):
        former = str(first[number].checkpoint)
        segment = Segment(number, 1, 2, former, 3, 1)
        result = one.run(Trial(number, params(""), number, "random"), segment, Listening())
        assert result.checkpoint == place(number, attempt=3)
        assert same_bits(read_state(study / result.checkpoint), read_state(alone / place(number)))
        enter(many, number, 2, former=former, start=1)
    for number, result in rounds(many, 1).items():
        assert same_bits(read_state(study / str(result.checkpoint)), read_state(alone / place(number)))
    one.close()
    many.close()


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_pack_is_each_of_its_trials_damage(tmp_path: Path, damage: str) -> None:
    first = run(tmp_path, [1, 1, 1])
    written = tmp_path / "trials" / "packs" / "00000-1-1x3.zip"
    if damage == "cut":
        os.truncate(written, written.stat().st_size // 2)
    else:
        written.unlink()
    many = worker(tmp_path)
    for number in range(3):
        enter(many, number, 2, former=str(first[number].checkpoint), start=1)
    for number, result in rounds(many, 1).items():
        assert result.failure is not None
        assert result.failure.kind == "checkpoint"
        assert f"the checkpoint {place(number, 1)} in {written}" in result.failure.message
    many.close()
