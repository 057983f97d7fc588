"""Studies that lie elsewhere than where they were begun, with what their trials need or without."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import hpsearch
from hpsearch.tables.trials import rows_to_csv
from tests.hpsearch.support.command_line import Call, write_sweep

INLINE = ("--backend", "inline")

SCRIPT = """
import os

import hpsearch

trial = hpsearch.current_trial()
place = 0.0 if trial.checkpoint is None else trial.checkpoint["place"]
print("in", os.getcwd())
for _ in trial.iterations():
    place += trial.params["x"]
    trial.report({"loss": place}, checkpoint={"place": place})
"""


@pytest.fixture
def begun(here: Path, hpsearch_command: Call, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script, its sweep, and a study of two of its four trials; one above it is entered."""
    folder = here / "begun"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    write_sweep(folder / "script.yaml", None, program="train.py")
    monkeypatch.chdir(folder)
    assert hpsearch_command("run", "script.yaml", *INLINE, "--dir", "study", "--set", "run_cap=2").code == 0
    monkeypatch.chdir(here)
    return folder


def table(study: str) -> str:
    return rows_to_csv(hpsearch.load(study).trials, ["x"])


@pytest.mark.exhaustive
def test_a_script_that_was_moved_with_its_study_runs_where_it_lies_now(here, begun, hpsearch_command, monkeypatch):
    begun.rename(here / "moved")
    monkeypatch.chdir(here / "moved")
    answer = hpsearch_command("resume", "study", *INLINE, "--set", "run_cap=4")
    assert answer.code == 0
    assert f"{begun}, where the sweep was started, is gone: its script runs in {here / 'moved'}\n" in answer.out
    assert Path("study/trials/00003/1/output.log").read_text() == f"in {here / 'moved'}\n"
    assert hpsearch_command("run", "script.yaml", *INLINE, "--dir", "whole").code == 0
    assert table("study") == table("whole")


@pytest.mark.exhaustive
def test_without_the_script_nothing_runs_and_no_trial_has_failed(here, begun, hpsearch_command):
    begun.rename(here / "moved")
    answer = hpsearch_command("resume", "moved/study", *INLINE, "--set", "run_cap=4")
    assert answer.code == 1
    assert f"there is no 'train.py' in {here}. {begun}, where the sweep was started, is gone: resume in " in answer.err
    assert [trial.state for trial in hpsearch.load("moved/study").trials] == ["complete", "complete"]


@pytest.mark.exhaustive
def test_a_copys_script_runs_where_the_sweep_was_started_and_that_is_said(here, begun, hpsearch_command, monkeypatch):
    shutil.copytree(begun, here / "copy")
    monkeypatch.chdir(here / "copy")
    answer = hpsearch_command("resume", "study", *INLINE, "--set", "run_cap=4")
    assert f"its script runs in {begun}, where the sweep was started\n" in answer.out
    assert Path("study/trials/00003/1/output.log").read_text() == f"in {begun}\n"
