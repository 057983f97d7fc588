"""`hpsearch rerun`: the best configurations of a study, run again."""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path

import pytest

import hpsearch
from hpsearch.journal.directory import StudyDirectory
from hpsearch.tables.trials import rows_to_csv
from tests.hpsearch.support.cli_trainables import GATE, OPEN, REACHED
from tests.hpsearch.support.command_line import Call, begin, wait_for, write_sweep

INLINE = ("--backend", "inline")

SCRIPT = """
import argparse

import hpsearch

parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float)
x = parser.parse_args().x
trial = hpsearch.current_trial()
for _ in trial.iterations():
    trial.report({"loss": x + trial.seed % 7})
"""


@pytest.fixture
def study(here: Path, hpsearch_command: Call) -> Path:
    assert hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", "study").code == 0
    return here / "study"


def loaded(place: str | Path) -> hpsearch.Rerun:
    found = hpsearch.load(place).rerun
    assert found is not None
    return found


def test_it_ends_with_the_table_and_says_which_is_best(study, hpsearch_command):
    answer = hpsearch_command("rerun", "study", "--top", 2, "--seeds", 3, *INLINE)
    assert (answer.code, answer.err) == (0, "")
    told = loaded("runs/sweep-rerun-1")
    assert answer.out.endswith(
        f"{told.text()}trials:      hpsearch trials runs/sweep-rerun-1\n"
        "TensorBoard: hpsearch tensorboard runs/sweep-rerun-1\n"
        "report:      hpsearch report runs/sweep-rerun-1\n"
    )
    heads = re.search(r"^ *trial +.*$", answer.out, re.MULTILINE)
    assert heads is not None
    assert heads[0].split() == ["trial", "its", "loss", "iterations", "x", "mean", "std", "min", "max", "runs"]
    assert f"best by mean: trial {told.best.trial} of {study}, loss {told.best.mean:.6g} ± " in answer.out
    assert [len(told.former), len(told.study.trials)] == [2, 6]


def test_it_takes_the_next_free_directory_or_the_given_one(study, hpsearch_command):
    for number in (1, 2):
        assert hpsearch_command("rerun", "study", "--seeds", 1, *INLINE).code == 0
        assert loaded(f"runs/sweep-rerun-{number}").study.state == "finished"
    command = ("rerun", "study", "--seeds", 1, "--iterations", 3, "--dir", "given", "--no-tensorboard", "--durable")
    assert hpsearch_command(*command, *INLINE).code == 0
    assert {row.iterations for row in hpsearch.load("given").trials} == {3}
    assert not Path("given/tensorboard").exists()


def test_the_commands_that_read_a_study_know_it_without_the_former_one(study, hpsearch_command):
    hpsearch_command("rerun", "study", "--top", 2, *INLINE, "--dir", "again")
    shutil.rmtree(study)
    told = loaded("again")
    answer = hpsearch_command("best", "again")
    assert answer.out.startswith(f"trial       {told.study.best_trial.number}\n")
    assert answer.out.endswith(told.text())
    given = json.loads(hpsearch_command("best", "again", "--format", "json").out)
    assert [one["trial"] for one in given["configurations"]] == [one.trial for one in told.configurations]
    assert given["configurations"][0] == {
        "trial": told.best.trial,
        "value": told.best.value,
        "iterations": 2,
        "params": {"x": told.best.params["x"]},
        "mean": told.best.mean,
        "std": told.best.std,
        "min": told.best.min,
        "max": told.best.max,
        "succeeded": 3,
        "runs": 3,
    }
    assert f"rerun of    {study}: 2 configurations, 3 runs each\n" in hpsearch_command("status", "again").out
    assert len(hpsearch_command("trials", "again", "--format", "csv").out.splitlines()) == 1 + 6
    assert hpsearch_command("export", "again").code == 0
    assert hpsearch_command("resume", "again", *INLINE).out.count(told.text()) == 1


@pytest.mark.exhaustive
def test_killed_it_is_resumed_to_the_table_of_one_that_was_not(here, hpsearch_command, tmp_path_factory):
    assert (
        hpsearch_command("run", write_sweep(here / "gated.yaml", "gated", run_cap=2), *INLINE, "--dir", "study").code
        == 0
    )
    gate = tmp_path_factory.mktemp("gate")
    command = ("rerun", "study", "--top", 2, "--seeds", 3, *INLINE)
    with begin(*command, "--dir", "killed", cwd=here, **{GATE: str(gate)}) as process:
        wait_for((gate / REACHED).exists, process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert hpsearch.load("killed").state == "killed"
    assert "not ended:    4 of 6 runs\n" in hpsearch_command("best", "killed").out
    shutil.copytree("killed", "resumed")
    (gate / OPEN).touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(GATE, str(gate))
        assert hpsearch_command("resume", "resumed", *INLINE).out.count("best by mean: trial") == 1
        assert hpsearch_command(*command, "--dir", "killed").out.count("best by mean: trial") == 1
        assert hpsearch_command(*command, "--dir", "whole").code == 0
    tables = [rows_to_csv(hpsearch.load(place).trials, ["x"]) for place in ("killed", "resumed", "whole")]
    assert tables[0] == tables[1] == tables[2]
    assert loaded("killed").text() == loaded("whole").text()


def test_failed_runs_are_named_and_run_again_with_retry(study, hpsearch_command):
    write_sweep(study.parent / "moody.yaml", "moody")
    hpsearch_command("run", "moody.yaml", *INLINE, "--dir", "moody-study")
    Path("moody").write_text("6")
    answer = hpsearch_command("rerun", "moody-study", "--top", 4, "--seeds", 2, *INLINE, "--dir", "again")
    assert answer.code == 0
    numbers = [one.trial for one in loaded("again").former]
    for run in (6, 7):
        assert f"failed:       run {run} (of trial {numbers[run - 4]}): ValueError: not today\n" in answer.out
    Path("moody").unlink()
    assert "failed:" not in hpsearch_command("retry", "again", *INLINE).out
    assert [one.succeeded for one in loaded("again").configurations] == [2, 2, 2, 2]


def test_one_of_which_all_fail_has_no_value(here, hpsearch_command):
    write_sweep(here / "moody.yaml", "moody")
    hpsearch_command("run", "moody.yaml", *INLINE, "--dir", "study")
    Path("moody").write_text("0")
    answer = hpsearch_command("rerun", "study", "--top", 2, "--seeds", 1, *INLINE)
    assert answer.code == 4
    assert "finished, but no trial has a value (2 failed)" in answer.out


def test_a_script_and_its_folder_are_found_from_anywhere(here, hpsearch_command, monkeypatch, tmp_path_factory):
    (here / "train.py").write_text(SCRIPT)
    write_sweep(here / "script.yaml", None, program="train.py")
    assert hpsearch_command("run", "script.yaml", *INLINE, "--dir", "study", "--set", "run_cap=2").code == 0
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    answer = hpsearch_command("rerun", here / "study", "--top", 1, "--seeds", 2, *INLINE)
    assert answer.code == 0, answer.err
    told = loaded("runs/script-rerun-1")
    assert told.best.succeeded == 2
    with pytest.raises(hpsearch.SweepError, match="runs a script, which can't be given as trainable"):
        hpsearch.rerun(here / "study", trainable="a:b", backend="inline")


def test_a_simulated_study_needs_its_backend(here, hpsearch_command, monkeypatch, tmp_path_factory):
    (here / "c.csv").write_text("x,loss\n0,1\n1,2\n")
    (here / "table.yaml").write_text("{table: c.csv, parameters: {x: x}, metrics: {loss: loss}}")
    write_sweep(here / "t.yaml", trainable=None)
    text = (here / "t.yaml").read_text().replace("max_iter: 2", "max_iter: 1")
    (here / "t.yaml").write_text(f"{text}trainable: table.yaml\n")
    virtual = ("--backend", "simulated", "--workers", 2)
    assert hpsearch_command("run", "t.yaml", *virtual, "--dir", "study").code == 0
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    refused = hpsearch_command("rerun", here / "study")
    assert refused.code == 1
    assert "run it with --backend simulated" in refused.err
    assert not Path("runs").exists()
    assert hpsearch_command("rerun", here / "study", *virtual).code == 0


def test_fewer_configurations_than_asked_for_are_said(study, hpsearch_command):
    answer = hpsearch_command("rerun", "study", "--top", 9, "--seeds", 1, *INLINE)
    assert answer.out.startswith("4 configurations of the 9 asked for: no other has a value\n")
    assert "sweep-rerun: minimize loss, 4 trials, 8 iterations" in answer.out


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        ("rerun study --top 0", 2, "--top: must be a whole number, at least 1, got '0'"),
        ("rerun study --seeds x", 2, "--seeds: must be a whole number, at least 1, got 'x'"),
        ("rerun no", 1, "expected a study's directory"),
        ("rerun study --dir study", 1, "expected no study, or a rerun of trials .*, but the one there is no rerun"),
        ("rerun failed", 1, r"no trial has a value of 'loss' yet \(4 failed\)"),
        (
            "rerun mine",
            1,
            r"'__main__:train' was given from Python .* continue with hpsearch.rerun\('mine', trainable=",
        ),
    ],
)
def test_mistakes(study, hpsearch_command, words, code, expected):
    if "failed" in words:
        write_sweep(study.parent / "failed.yaml", "fails")
        hpsearch_command("run", "failed.yaml", *INLINE, "--dir", "failed")
    if "mine" in words:

        def train(trial):
            for _ in trial.iterations():
                trial.report({"loss": 1.0})

        train.__module__, train.__qualname__ = "__main__", "train"
        space = {"x": hpsearch.Uniform(0.0, 1.0)}
        hpsearch.search(
            train, parameters=space, metric="loss", run_cap=1, max_iter=1, directory="mine", backend="inline"
        )
    answer = hpsearch_command(*words.split(), *INLINE)
    assert answer.code == code
    assert re.search(expected, answer.err, re.DOTALL), answer.err
    assert not Path("runs").exists()


def test_a_study_that_a_live_process_runs_is_refused(study, hpsearch_command):
    with StudyDirectory(study).running("ann@box:7"):
        answer = hpsearch_command("rerun", "study", *INLINE)
    assert answer.code == 1
    assert "a study must have ended to be rerun" in answer.err
    assert "ann@box:7 runs it now" in answer.err
