"""A study from elsewhere in which links lie: commands write into the study, never to what a link names."""

from __future__ import annotations

from pathlib import Path

import pytest

import hpsearch
from hpsearch.errors import StorageError
from hpsearch.observers.tensorboard.event_file import EventFiles
from tests.hpsearch.support.asking import asked_sweep
from tests.hpsearch.support.command_line import call
from tests.hpsearch.support.warm import search_bowl


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text("precious")
    return path


@pytest.mark.parametrize("is_there", [True, False])
def test_a_report_replaces_a_link(tmp_path, victim, capsys, is_there):
    study = search_bowl(tmp_path / "study", run_cap=2)
    if not is_there:
        victim.unlink()
    (study.directory / "report.html").symlink_to(victim)
    assert call(capsys, "report", study.directory).code == 0
    assert not (study.directory / "report.html").is_symlink()
    assert "</html>" in (study.directory / "report.html").read_text()
    assert (victim.read_text() if is_there else victim.exists()) == ("precious" if is_there else False)


def test_a_report_goes_to_the_link_that_the_user_names(tmp_path, victim, capsys):
    study = search_bowl(tmp_path / "study", run_cap=2)
    (tmp_path / "link").symlink_to(victim)
    assert call(capsys, "report", study.directory, "--output", tmp_path / "link").code == 0
    assert "</html>" in victim.read_text()


def test_an_export_replaces_links(tmp_path, victim, capsys):
    study = search_bowl(tmp_path / "study", run_cap=2)
    folder = tmp_path / "folder"
    folder.mkdir()
    (study.directory / "export").symlink_to(folder)
    assert call(capsys, "export", study.directory).code == 0
    assert list(folder.iterdir()) == []
    written = sorted((study.directory / "export").iterdir())
    assert {path.name for path in written} == {"optuna.log", "reports.csv", "trials.csv", "trials.parquet"}
    for path in written:
        if path.suffix != ".log":  # one of Optuna's that isn't ours is refused
            path.unlink()
            path.symlink_to(victim)
    assert call(capsys, "export", study.directory).code == 0
    assert not any(path.is_symlink() for path in written)
    assert victim.read_text() == "precious"


def test_observers_that_are_shown_a_study_replace_or_refuse_links(tmp_path, victim, capsys):
    study = search_bowl(tmp_path / "study", run_cap=2)
    (study.directory / "trials.csv").symlink_to(victim)
    assert call(capsys, "export", study.directory, "--observer", "csv").code == 0
    assert not (study.directory / "trials.csv").is_symlink()
    files = EventFiles(tmp_path / "tensorboard")
    files.scalars("run", 0.0, 1, [("loss", 0.5)])
    files.flush()
    (path,) = (tmp_path / "tensorboard" / "run").iterdir()
    path.unlink()
    path.symlink_to(victim)
    files.scalars("run", 0.0, 2, [("loss", 0.5)])
    with pytest.raises(OSError, match="symbolic links"):
        files.flush()
    assert victim.read_text() == "precious"


def test_a_lock_isnt_written_through_a_link(tmp_path, victim):
    with hpsearch.AskTell(asked_sweep(), directory=tmp_path / "lab") as lab:
        lock = lab.directory / "run.lock"
        lock.unlink()
        lock.symlink_to(victim)
        with pytest.raises(StorageError, match="symbolic links"):
            lab.ask()
    assert victim.read_text() == "precious"
