"""Commands on a study that isn't named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hpsearch.cli.parser import build_parser
from tests.hpsearch.support.command_line import Call

RUN = ("run", "sweep.yaml", "--backend", "inline", "--no-tensorboard")
TAKEN = "hpsearch: runs/sweep-2 is taken, the newest study in runs\n"


@pytest.fixture
def studies(made: Path, here: Path, hpsearch_command: Call) -> Path:
    if not (made / "runs").exists():
        for number, cap in enumerate((3, 5), 1):
            asked = ("--set", f"run_cap={cap}", "--dir", made / f"runs/sweep-{number}")
            assert hpsearch_command(*RUN, *asked).code == 0
    return shutil.copytree(made / "runs", here / "runs")


@pytest.mark.parametrize(
    "words", ["status", "trials", "best", "lineage", "export", "trial", "logs", "lineage 1", "trial 4", "logs 4"]
)
def test_the_newest_study_is_taken_and_named(studies, hpsearch_command, words):
    answer = hpsearch_command(*words.split())
    assert (answer.code, answer.err.partition("\n")[0] + "\n") == (0, TAKEN)
    name, *trial = words.split()
    named = hpsearch_command(name, "runs/sweep-2", *trial)
    assert named.out.replace(str(studies), "runs") == answer.out.replace(str(studies), "runs")
    assert named.err == answer.err.removeprefix(TAKEN)


def test_the_newest_is_where_something_happened_last(studies, hpsearch_command):
    resumed = ("resume", "runs/sweep-1", "--backend", "inline", "--no-tensorboard", "--set", "run_cap=4")
    assert hpsearch_command(*resumed).code == 0
    assert hpsearch_command("tag", "runs/sweep-2", "late").code == 0
    answer = hpsearch_command("trials", "--format", "json")
    assert answer.err == TAKEN.replace("sweep-2", "sweep-1")
    assert len(json.loads(answer.out)) == 4
    assert json.loads(hpsearch_command("list", "--format", "json").out)[0]["directory"] == "runs/sweep-1"


def test_one_that_cannot_be_read_is_passed_over_and_named(studies, hpsearch_command):
    foreign = studies / "foreign"
    foreign.mkdir()
    (foreign / "study.db").write_text("no database")
    answer = hpsearch_command("status")
    assert answer.code == 0
    assert answer.err.startswith("hpsearch: runs/foreign is passed over: ")
    assert answer.err.endswith(TAKEN)


def test_a_number_alone_is_a_trial_unless_a_study_is_called_so(studies, hpsearch_command, here):
    assert hpsearch_command("trial", "4").out.startswith(f"trial       4 of {studies / 'sweep-2'}\n")
    shutil.copytree(studies / "sweep-1", here / "4")
    answer = hpsearch_command("trial", "4")
    assert (answer.code, answer.out) == (1, "")
    assert "hpsearch: 4: must be a directory or a trial, but could be both: write ./4 for the study" in answer.err
    assert hpsearch_command("trial", "./4").code == 0
    assert hpsearch_command("trial", "4", "2").out.startswith(f"trial       2 of {here / '4'}\n")


@pytest.mark.parametrize("folder", [False, True])
def test_without_a_study_it_is_said_what_to_do(here, hpsearch_command, folder):
    if folder:
        Path("runs/empty").mkdir(parents=True)
    answer = hpsearch_command("best")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == (
        "hpsearch: runs: without a directory, the newest study in this folder is used, but there is none. Name the "
        "directory that `hpsearch run` printed.\n"
    )


@pytest.mark.parametrize("command", ["resume", "retry", "stop", "tag", "note", "tell"])
def test_what_changes_a_study_asks_for_its_directory(command):
    with pytest.raises(SystemExit, match="2"):
        build_parser().parse_args([command])
