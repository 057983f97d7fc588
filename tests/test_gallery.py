"""The examples of docs/gallery run alone and in a sweep; those of `hpsearch init` are tested with that command."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import hpsearch
from docs.build_site import with_files
from tests.hpsearch.support.command_line import PROGRAM, environment

GALLERY = Path(__file__).parents[1] / "docs" / "gallery"
FOLDERS = sorted(path.name for path in GALLERY.iterdir() if path.is_dir())

SHORTER = {
    "class": ("early_terminate.population=2", "early_terminate.max_iter=2", "early_terminate.interval=1"),
    "hugging-face": ("run_cap=2", "early_terminate.max_iter=1"),
    "hydra": ("early_terminate.max_iter=3",),
    "architecture-search": ("run_cap=12", "max_iter=1"),
    "several-metrics": ("run_cap=12", "max_iter=2"),
    "agents": ("early_terminate.max_iter=3",),
}
"""Changes of a sweep, with which it still does what the example shows."""


def test_the_page_has_every_file_and_none_is_long():
    text = (GALLERY / "README.md").read_text()
    linked = {(GALLERY / target).resolve() for target in re.findall(r"^- \[\S+\]\((\S+)\)$", text, re.MULTILINE)}
    files = {path for folder in FOLDERS for path in (GALLERY / folder).iterdir() if path.is_file()}
    assert files == {path for path in linked if path.is_relative_to(GALLERY)}
    assert set(FOLDERS) == SHORTER.keys()
    for folder in {path.parent for path in linked}:
        assert sum(len(path.read_text().splitlines()) for path in linked if path.parent == folder) <= 60
    shown = with_files(text, GALLERY)
    assert all(path.read_text() in shown for path in linked)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FOLDERS)
def test_an_example_runs_alone_is_checked_and_is_searched(name: str, tmp_path: Path):
    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True)
        assert done.returncode == 0, (command, done)
        return done.stdout

    folder = tmp_path / name
    shutil.copytree(GALLERY / name, folder, ignore=shutil.ignore_patterns("__pycache__"))
    assert run(sys.executable, "train.py").count("iteration ") == 3
    assert "DIFFERS" not in run(PROGRAM, "check", "sweep.yaml")
    changes = [word for change in SHORTER[name] for word in ("--set", change)]
    run(PROGRAM, "run", "sweep.yaml", "--backend", "inline", "--dir", "study", *changes)
    study = hpsearch.load(folder / "study")
    assert study.state == "finished"
    assert {str(row.state) for row in study.trials} <= {"complete", "stopped"}
    if name == "class":
        assert "notes.torch" in run(PROGRAM, "trials", "study", "--notes", "--format", "csv")
        assert any(row.parent is not None for row in study.trials)
    if name == "several-metrics":
        assert len(study.leaders) >= 1


@pytest.mark.exhaustive
def test_agents_on_two_hosts_run_the_trials(tmp_path: Path):
    folder = tmp_path / "agents"
    shutil.copytree(GALLERY / "agents", folder, ignore=shutil.ignore_patterns("__pycache__"))
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    ssh.chmod(0o755)
    path = os.pathsep.join((str(tmp_path), str(Path(PROGRAM).parent), os.environ["PATH"]))
    command = ["sh", "lab.sh", "one", "two"]
    done = subprocess.run(command, cwd=folder, env=environment(PATH=path), capture_output=True, text=True)
    assert done.returncode == 0, done
    study = hpsearch.load(folder / "runs/lab")
    assert study.state == "finished"
    assert all(row.notes["host"] == socket.gethostname() for row in study.trials)
