"""Studies whose checkpoints lie in packs, as a killed run leaves them: who asks for one finds it at its place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import hpsearch
from hpsearch.cli import main
from hpsearch.journal.directory import StudyDirectory
from hpsearch.trainable.addresses import pack_of
from hpsearch.trainable.checkpoints import read_state
from hpsearch_trainers.lanes.bits import same_bits
from tests.hpsearch.support.files import files_below
from tests.hpsearch.support.lane_sweeps import packed_study, search


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> hpsearch.Study:
    return packed_study(tmp_path / "study", monkeypatch)


@pytest.mark.exhaustive
def test_the_best_one_is_written_out_where_it_is_asked_for(study):
    row = study.trials[study.best_trial.number]
    assert row.checkpoint == f"trials/{row.number:05d}/1/hpsearch-checkpoint-2"
    assert row.address == f"trials/packs/00000-1-2x5.zip#{row.checkpoint}"
    expected = study.directory / row.checkpoint / "state.pt"
    for _ in range(2):
        assert hpsearch.load(study.directory).best_trial.checkpoint == expected
    state = torch.load(expected, weights_only=True)
    assert same_bits(state, read_state(study.directory / row.address))
    assert state["epoch"] == 2
    folders = [path.name for path in expected.parent.parent.iterdir() if path.is_dir()]
    assert folders == ["hpsearch-checkpoint-2"]  # beside it a file may say that lanes weren't faster here
    assert len(StudyDirectory(study.directory).packs()) == 1


@pytest.mark.exhaustive
def test_tables_and_exports_name_the_place(study, tmp_path, capsys):
    (place,) = {row.checkpoint for row in study.trials if row.checkpoint is not None}
    assert main(["trials", str(study.directory), "--columns", "trial,checkpoint", "--format", "csv"]) == 0
    assert [line.split(",")[1] for line in capsys.readouterr().out.splitlines()[1:] if line[-1] != ","] == [place]
    for words in (["best"], ["status"], ["trial", str(study.best_trial.number)]):
        assert main([words[0], str(study.directory), *words[1:]]) == 0
    assert ".zip" not in capsys.readouterr().out
    assert main(["export", str(study.directory), "--to", str(tmp_path / "export")]) == 0
    assert not [name for name, text in files_below(tmp_path / "export").items() if b".zip#" in text]


def test_the_best_one_is_saved_as_any_other(study, tmp_path):
    state = read_state(study.directory / str(study.trials[study.best_trial.number].address))
    study.save_best(tmp_path / "folder")
    assert same_bits(torch.load(tmp_path / "folder" / "state.pt", weights_only=True), state)
    study.save_best(tmp_path / "best.pt")
    assert same_bits(torch.load(tmp_path / "best.pt", weights_only=True)["state"], state)


def test_a_damaged_pack_holds_no_checkpoint(study):
    (pack,) = StudyDirectory(study.directory).packs()
    os.truncate(pack, pack.stat().st_size // 2)
    assert hpsearch.load(study.directory).best_trial.checkpoint is None


def test_clean_leaves_what_the_best_one_needs(study, capsys):
    place = StudyDirectory(study.directory)
    (place.path / "trials" / "packs" / "00009-1-2x3.zip").write_bytes(b"of workers that died")
    (address,) = {str(row.address) for row in study.trials if row.address is not None}
    assert main(["clean", str(place.path), "--yes"]) == 0
    assert "1 checkpoint " in capsys.readouterr().out
    assert [f"trials/packs/{pack.name}" for pack in place.packs()] == [pack_of(address)]
    assert hpsearch.load(place.path).best_trial.checkpoint is not None
    assert main(["clean", str(place.path), "--yes"]) == 0
    assert place.packs() == [], "what it needs was written out"
    assert read_state(place.path / address)["epoch"] == 2


def test_where_all_checkpoints_are_kept_each_lies_at_its_place(tmp_path):
    options: dict[str, Any] = {
        "early_terminate": None,
        "max_iter": 2,
        "run_cap": 5,
        "resources": {"trials_per_worker": 5},
    }
    study = search(tmp_path / "study", ("",), checkpoints={"keep": "all"}, **options)
    assert all((study.directory / str(row.checkpoint)).is_dir() for row in study.trials)
    assert StudyDirectory(study.directory).packs() == []


def test_a_sweep_that_is_stopped_writes_the_best_ones_out_and_leaves_the_others_together(tmp_path):
    def stop(row: hpsearch.TrialRow) -> None:
        raise hpsearch.StopSearch

    options: dict[str, Any] = {
        "resources": {"trials_per_worker": 5},
        "early_terminate": hpsearch.Hyperband(max_iter=9, eta=3),
    }
    study = search(tmp_path / "study", ("",), callbacks=[stop], **options)
    place = StudyDirectory(study.directory)
    assert study.state == "stopped"
    (best,) = study.leaders
    waiting = [row for row in study.trials if row.state == "waiting" and row.checkpoint is not None]
    assert place.packs()
    assert (place.path / str(best.checkpoint)).is_dir()
    assert [row for row in waiting if row != best and not (place.path / str(row.checkpoint)).exists()]
    assert all(read_state(place.path / str(row.address)) for row in waiting)
