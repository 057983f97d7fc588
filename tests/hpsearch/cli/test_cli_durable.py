"""`--durable`: which files are on the disk, and when."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import yaml

import hpsearch
from hpsearch.events import Finished
from hpsearch.journal.journal import Journal
from tests.hpsearch.support.command_line import Call
from tests.hpsearch.support.scripted import events_of

SWEEP = {
    "trainable": "tests.hpsearch.support.lane_trainables:Small",
    "metric": {"name": "loss", "goal": "minimize"},
    "method": "random",
    "max_iter": 2,
    "run_cap": 3,
    "parameters": {
        "lr": {"min": 0.01, "max": 0.1},
        "hidden": {"value": 24},
        "dropout": {"value": 0.0},
        "fault": {"value": ""},
    },
}


class Flushed:
    """What was brought onto the disk, by paths relative to the study; each with what stood in the journal first."""

    def __init__(self, study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.named: dict[str, set[str | None]] = {}
        self.beside_a_pack: set[str] = set()
        self._study = study
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._note)

    def _note(self, descriptor: int) -> None:
        self._fsync(descriptor)
        path = os.path.relpath(Path(f"/proc/self/fd/{descriptor}").readlink(), self._study)
        with Journal.read(self._study / "study.db") as journal:
            named = {entry.event.checkpoint for entry in journal.entries() if isinstance(entry.event, Finished)}
        self.named.setdefault(path, named)
        if list(self._study.glob("trials/packs/*.zip")):
            self.beside_a_pack.add(path)


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run(hpsearch_command: Call, *options: str) -> None:
    Path("lanes.yaml").write_text(yaml.safe_dump(SWEEP))
    command = ("run", "lanes.yaml", "--backend", "inline", "--dir", "study", "--no-tensorboard", *options)
    assert hpsearch_command(*command).code == 0


@pytest.mark.exhaustive
def test_a_checkpoint_is_on_the_disk_before_the_journal_names_it(here, hpsearch_command, monkeypatch):
    flushed = Flushed(here / "study", monkeypatch)
    run(hpsearch_command, "--durable")
    named = [event.checkpoint for event in events_of(here / "study") if isinstance(event, Finished)]
    assert len(named) == 3
    for checkpoint in named:
        assert checkpoint is not None
        for part in ("", "/state.pt", "/random.pt", "/manifest.json"):
            assert checkpoint not in flushed.named[f"{checkpoint}{part}"]
        assert checkpoint not in flushed.named[str(Path(checkpoint).parent)]
    assert {"trials", ".", ".."} <= flushed.named.keys()


def test_a_pack_is_before_any_of_it_is_named_and_goes_when_the_best_one_is_itself(
    here, hpsearch_command, monkeypatch, one_thread
):
    flushed = Flushed(here / "study", monkeypatch)
    run(hpsearch_command, "--durable", "--set", "resources.trials_per_worker=3")
    named = {event.checkpoint for event in events_of(here / "study") if isinstance(event, Finished)}
    (pack,) = {str(checkpoint).partition("#")[0] for checkpoint in named}
    assert flushed.named[pack] == set()
    assert not (here / "study" / pack).exists()
    best = hpsearch.load("study").best_trial.checkpoint
    assert best is not None
    assert os.path.relpath(best.resolve(), here / "study") in flushed.beside_a_pack


def test_without_it_nothing_is_flushed(here, hpsearch_command, monkeypatch):
    flushed = Flushed(here / "study", monkeypatch)
    run(hpsearch_command)
    assert not [path for path in flushed.named if "checkpoint" in path]


def test_a_checkpoint_that_somebody_has_deleted_is_passed_over(tmp_path):
    Journal.create(tmp_path / "study.db", {"sweep": {}})
    gone = Finished(0, 1, 1, "trials/00000/1/hpsearch-checkpoint-1", (), False, 1.0)
    with Journal.open(tmp_path / "study.db", durable=True) as journal:
        journal.append([gone])
    with Journal.read(tmp_path / "study.db") as journal:
        assert [entry.event for entry in journal.entries()] == [gone]
