"""`hpsearch rm` and `hpsearch clean`."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest

import hpsearch
from hpsearch.journal.directory import StudyDirectory
from hpsearch.run import on_end
from hpsearch.tables.trials import rows_to_csv
from tests.hpsearch.support.command_line import PATIENCE, PROGRAM, call, environment, write_sweep


@pytest.fixture
def study(made: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A study that kept all checkpoints, of which one trial has failed."""
    if not (made / "study").exists():
        (here / "moody").write_text("3")
        write_sweep(here / "all.yaml", "moody", run_cap=4, checkpoints={"keep": "all", "every": 1})
        assert call(capsys, "run", "all.yaml", "--backend", "inline", "--dir", made / "study").code == 0
    shutil.copytree(made / "study", here / "study")
    return here / "study"


def test_a_study_is_deleted_with_all_that_is_its_own(study, hpsearch_command, here):
    assert hpsearch_command("export", "study").code == 0
    (study / on_end.LOG).write_text("hi\n")
    assert hpsearch_command("report", "study").code == 0
    assert (study / "report.html").exists()
    for name in ("trials.csv", "reports.csv", "mlflow.db", ".mlflow.db.partial-journal", ".trials.csv.12.partial"):
        (study / name).write_text("of an observer")
    (study / "sight.token").write_text("of a run on a cluster that was killed")
    shutil.copytree(study, here / "other")
    answer = hpsearch_command("rm", "study", "other", "--yes")
    assert (answer.code, answer.err) == (0, "")
    assert not study.exists()
    assert not (here / "other").exists()
    assert here.exists()


def test_what_is_not_the_studys_stays_and_is_named(study, hpsearch_command):
    (study / "thesis.tex").write_text("mine")
    (study / "export").mkdir()
    (study / "export" / "plot.png").write_text("mine, too")
    answer = hpsearch_command("rm", "study", "--yes")
    assert answer.code == 0
    assert "  what isn't the study's stays, and so does the folder: export, thesis.tex\n" in answer.out
    assert sorted(path.name for path in study.rglob("*")) == ["export", "plot.png", "thesis.tex"]


def test_nothing_is_deleted_through_a_link(study, hpsearch_command, here):
    (here / "link").symlink_to(study)
    answer = hpsearch_command("rm", "link", "--yes")
    assert (answer.code, answer.out) == (1, "")
    assert f"link: must be a study's directory itself, but is a link to {study}" in answer.err
    kept = here / "elsewhere"
    shutil.move(study / "trials", kept)
    (study / "trials").symlink_to(kept)
    assert hpsearch_command("rm", "study", "--yes").code == 0
    assert len(list(kept.iterdir())) == 4
    assert not study.exists()


@pytest.mark.parametrize("words", ["rm study --yes", "rm study empty --yes", "clean study --yes"])
def test_a_study_that_runs_is_refused_with_all_others(study, hpsearch_command, words):
    before = sorted(study.rglob("*"))
    with StudyDirectory(study).running("me@here:1"):
        answer = hpsearch_command(*words.split())
    assert answer.code == 1
    assert "me@here:1 runs this study now" in answer.err
    assert sorted(study.rglob("*")) == before


@pytest.mark.parametrize("words", ["rm study empty --yes", "clean empty --yes"])
def test_what_is_no_study_is_refused_before_anything_is_deleted(study, hpsearch_command, here, words):
    (here / "empty").mkdir()
    answer = hpsearch_command(*words.split())
    assert (answer.code, answer.out) == (1, "")
    assert "expected a study's directory, which holds study.db; there is none here" in answer.err
    assert (study / "study.db").exists()


@pytest.mark.parametrize("command", ["rm", "clean"])
def test_without_a_terminal_it_must_be_agreed_to(study, hpsearch_command, monkeypatch, command):
    monkeypatch.setattr("sys.stdin", None)
    answer = hpsearch_command(command, "study")
    assert answer.code == 1
    assert answer.err.endswith("must be agreed to, but there is no terminal to ask at. Say --yes\n")
    assert (study / "tensorboard").exists()


@pytest.mark.parametrize(("said", "deleted"), [("n\n", False), ("\n", False), ("y\n", True)])
def test_at_a_terminal_it_asks(study, here, said, deleted):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [PROGRAM, "rm", "study"], cwd=here, env=environment(), stdin=theirs, stdout=subprocess.PIPE, text=True
    )
    os.close(theirs)
    os.write(ours, said.encode())
    out, _ = process.communicate(timeout=PATIENCE)
    os.close(ours)
    assert "delete this study? [y/N] " in out
    assert process.returncode == (0 if deleted else 1)
    assert study.exists() != deleted


def test_cleaning_leaves_what_the_best_trial_and_going_on_need(study, hpsearch_command):
    before = hpsearch.load(study)
    best = before.best_trial
    assert len(StudyDirectory(study).checkpoints()) == 6
    answer = hpsearch_command("clean", "study", "--yes")
    assert (answer.code, answer.err) == (0, "")
    assert [line.split("  ")[0] for line in answer.out.splitlines()] == ["5 checkpoints", "TensorBoard's event files"]
    after = hpsearch.load(study)
    assert after.best_trial == best
    assert best.checkpoint is not None
    assert best.checkpoint.is_file()
    assert rows_to_csv(after.trials, after.names) == rows_to_csv(before.trials, before.names)
    assert hpsearch_command("clean", "study", "--yes").out == f"{study}: nothing that isn't needed\n"
    grown = hpsearch_command("resume", "study", "--backend", "inline", "--set", "run_cap=6")
    assert grown.code == 0, grown
    assert [row.score for row in hpsearch.load(study).trials][:3] == [row.score for row in before.trials][:3]


def test_logs_go_where_they_are_asked_for_but_not_those_of_failures(study, hpsearch_command):
    for trial in range(4):
        folder = study / f"trials/{trial:05d}/1"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "output.log").write_text("words\n")
    assert hpsearch_command("clean", "study", "--yes").code == 0
    assert len(list(study.rglob("output.log"))) == 4
    assert hpsearch_command("clean", "study", "--logs", "--yes").out.startswith("3 logs ")
    assert [path.parts[-3] for path in study.rglob("output.log")] == ["00003"]


def test_an_unfinished_study_goes_on_as_if_it_had_not_been_cleaned(here, hpsearch_command):
    write_sweep(
        here / "halving.yaml",
        max_iter=None,
        run_cap=None,
        early_terminate={"type": "successive_halving", "max_iter": 9},
        checkpoints={"keep": "all"},
    )
    run = ("run", "halving.yaml", "--backend", "inline", "--no-tensorboard", "--dir")
    assert hpsearch_command(*run, "whole").code == 0
    assert hpsearch_command(*run, "cut", "--set", "limits.max_time=0.000001").code == 3
    assert hpsearch_command("clean", "cut", "--yes").code == 0
    on = ("resume", "cut", "--backend", "inline", "--no-tensorboard", "--set", "limits.max_time=1h")
    assert hpsearch_command(*on).code == 0
    tables = [rows_to_csv(study.trials, study.names) for study in map(hpsearch.load, ("whole", "cut"))]
    assert tables[0] == tables[1]
