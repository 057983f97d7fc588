"""What commands that take several studies say of a folder of studies."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from tests.hpsearch.support.command_line import call
from tests.hpsearch.support.compared import searched

COMMANDS = ("compare", "report", "tensorboard")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    for seed in range(2):
        searched(folder / f"s{seed}", name="s", run_cap=1, max_iter=1, seed=seed)
    return folder


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path / "runs")
    shutil.copytree(made, tmp_path / "my runs")
    shutil.copytree(made, tmp_path / "deep" / "runs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(capsys, *words: object) -> str:
    answer = call(capsys, *words)
    assert (answer.code, answer.out) == (1, "")
    return answer.err


@pytest.mark.parametrize("command", COMMANDS)
def test_what_to_type_for_the_studies_in_a_folder_is_said(here, command, capsys):
    error = said(capsys, command, "runs")
    assert error.startswith(
        "hpsearch: runs: expected a study's directory, which holds study.db; there is none here, but there are 2 in it:"
    )
    assert f"type `hpsearch {command} runs/*/`, or name those that you mean." in error
    assert f"`hpsearch {command} 'my runs'/*/`" in said(capsys, command, "my runs")
    assert f"`hpsearch {command} deep/*/*/`" in said(capsys, command, "deep")
    assert f"`hpsearch {command} runs/*/`" in said(capsys, command, "runs/s0", "runs")


def test_what_is_said_works_beside_files_and_in_the_folder_itself(here, capsys, monkeypatch):
    (here / "runs" / "notes.txt").touch()
    assert "`hpsearch compare runs/*/`" in said(capsys, "compare", "runs")
    monkeypatch.chdir(here / "my runs")
    shutil.rmtree("s1")
    assert "there is one in it: type `hpsearch compare ./*/`" in said(capsys, "compare", ".")


def test_what_is_said_names_studies_that_can_be_compared(here, capsys):
    command = said(capsys, "compare", "my runs").split("`")[1]
    answer = call(capsys, "compare", *sorted(Path().glob(shlex.split(command)[2])))
    assert answer.code == 0


def test_of_a_folder_without_studies_nothing_is_guessed(here, capsys):
    (here / "empty").mkdir()
    for folder in ("empty", "gone"):
        error = said(capsys, "compare", folder)
        assert f"{folder}: expected a study's directory, which holds study.db; there is none here. Name the" in error
        assert "type" not in error
