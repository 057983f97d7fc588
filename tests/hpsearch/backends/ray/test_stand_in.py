from __future__ import annotations

import os
import tempfile
import uuid
from pathlib import Path

import pytest

from hpsearch.backends.ray.worker import StandIn


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary directory of the test's own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def stand_in() -> StandIn:
    return StandIn(uuid.uuid4().hex)


def test_a_stand_in_is_made_only_when_it_is_asked_for(folder):
    stand_in().clear()
    assert list(folder.iterdir()) == []


def test_a_stand_in_is_emptied_and_stays(folder):
    mine = stand_in()
    (mine.create() / "trials").mkdir()
    mine.clear()
    assert mine.create() == mine.path
    assert list(mine.path.iterdir()) == []


def test_what_a_killed_worker_left_goes_when_the_next_makes_its_own(folder):
    deserted = stand_in().path
    (deserted / "trials").mkdir(parents=True)
    mine = stand_in()
    mine.create()
    assert list(folder.iterdir()) == [mine.path]


def test_a_living_workers_stand_in_and_foreign_folders_are_left_alone(folder):
    others = stand_in()
    (others.create() / "trials").mkdir()
    foreign = [folder / "hpsearch-mine", folder / f"hpsearch-{'g' * 32}", folder / "other"]
    for path in foreign:
        path.mkdir()
    link = folder / f"hpsearch-{'0' * 32}"
    link.symlink_to(foreign[0])
    stand_in().create()
    assert (others.path / "trials").is_dir()
    assert all(path.is_dir() for path in (*foreign, link))


def test_a_stand_in_that_another_deletes_before_it_is_locked_is_made_again(folder, monkeypatch):
    mine = stand_in()
    opened = os.open

    def open_and_lose(path, *arguments, **more):
        descriptor = opened(path, *arguments, **more)
        if path == mine.path:
            monkeypatch.setattr(os, "open", opened)
            mine.path.rmdir()
        return descriptor

    monkeypatch.setattr(os, "open", open_and_lose)
    assert mine.create().is_dir()
