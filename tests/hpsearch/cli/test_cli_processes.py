"""What only a process of its own shows: what is loaded, what a broken pipe does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hpsearch
from tests.hpsearch.support.command_line import PATIENCE, Call, begin, environment, write_sweep

INLINE = ("--backend", "inline")


@pytest.fixture
def study(here: Path, hpsearch_command: Call) -> Path:
    assert hpsearch_command("run", "sweep.yaml", *INLINE, "--dir", "study").code == 0
    return here / "study"


LOOKS = [
    "",
    "status study",
    "trials study",
    "trials study --format csv",
    "trials study --format json",
    "best study",
    "history study",
]


def test_looking_at_a_study_loads_neither_torch_nor_ray(study):
    code = (
        "import sys, hpsearch, hpsearch.cli\n"
        f"for words in {LOOKS!r}:\n"
        "    assert not words or hpsearch.cli.main(words.split()) == 0, words\n"
        "    loaded = {'torch', 'ray', 'numpy', 'scipy', 'pandas', 'tensorboard', 'optuna'} & set(sys.modules)\n"
        "    assert not loaded, (words, loaded)\n"
        "assert hpsearch.cli.main(['completion', 'bash']) == 0\n"  # it imports all commands
        "assert not {'torch', 'ray', 'tensorboard'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "words",
    [
        pytest.param("run sweep.yaml --backend inline --dir piped", marks=pytest.mark.exhaustive),
        "trials study",
        "plan sweep.yaml",
    ],
)
def test_a_reader_that_goes_away_gives_no_traceback(study, words):
    process = begin(*words.split(), cwd=study.parent)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() != ""
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=PATIENCE) in (0, 1)
    process.stderr.close()
    if words.startswith("run"):
        assert hpsearch.load("piped").state == "finished"  # a sweep doesn't die of whoever watches it


TRAIN = """
import argparse, json, os

parser = argparse.ArgumentParser()
parser.add_argument("--x", type=float)
parser.add_argument("--optimizer.lr", type=float, dest="lr")
arguments = parser.parse_args()
for iteration in range(int(os.environ["HPSEARCH_START"]), int(os.environ["HPSEARCH_END"])):
    with open(os.environ["HPSEARCH_REPORTS"], "a") as reports:
        reports.write(json.dumps({"loss": arguments.x + arguments.lr * iteration}) + "\\n")
"""


SPACE = {
    "x": {"distribution": "uniform", "min": 0, "max": 1},
    "optimizer": {"parameters": {"lr": {"value": 0.5}}},
}


def test_a_wandb_sweep_of_a_script_runs_with_the_default_command(here, hpsearch_command):
    (here / "train.py").write_text(TRAIN)
    write_sweep(
        here / "wandb.yaml",
        None,
        program="train.py",
        project="forgotten",
        description="as W&B has it",
        parameters=SPACE,
    )
    assert hpsearch_command("run", "wandb.yaml", *INLINE, "--dir", "study").code == 0
    trials = hpsearch.load("study").trials
    assert [trial.value for trial in trials] == [trial.params["x"] + 0.5 for trial in trials]
    assert hpsearch.load("study").best_params["optimizer"] == {"lr": 0.5}


@pytest.mark.parametrize(
    ("program", "command"),
    [
        ("package.train", ["${env}", "${interpreter}", "-m", "${program}", "${args}"]),
        ("train-it", ["${env}", "${program}", "${args}"]),
    ],
)
def test_a_program_may_be_a_module_or_a_command(here, hpsearch_command, monkeypatch, program, command):
    (here / "package").mkdir()
    (here / "package/train.py").write_text(TRAIN)
    (here / "bin").mkdir()
    (here / "bin/train-it").write_text(f"#!{sys.executable}\n{TRAIN}")
    (here / "bin/train-it").chmod(0o755)
    monkeypatch.setenv("PATH", f"{here / 'bin'}:{os.environ['PATH']}")
    write_sweep(here / "wandb.yaml", None, program=program, command=command, parameters=SPACE)
    assert hpsearch_command("run", "wandb.yaml", *INLINE, "--dir", "study").code == 0
    trials = hpsearch.load("study").trials
    assert [trial.value for trial in trials] == [trial.params["x"] + 0.5 for trial in trials]


def test_without_run_cap_a_sweep_goes_on_until_something_ends_it_and_says_so(here, hpsearch_command):
    (here / "train.py").write_text(TRAIN)
    write_sweep(here / "wandb.yaml", None, program="train.py", run_cap=None, parameters=SPACE)
    answer = hpsearch_command("run", "wandb.yaml", *INLINE, "--set", "metric.target=1000", "--dir", "study")
    assert answer.code == 0
    assert "note: run_cap isn't given: trials are created until the sweep is stopped" in answer.err
    assert hpsearch.load("study").state == "target"


def test_the_package_is_the_command_too(study):
    run = [sys.executable, "-m", "hpsearch", "note", "study", "as a module"]
    done = subprocess.run(run, env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "as a module\n", "")
