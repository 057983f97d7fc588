"""A script that is started by hand, and a function that is tried out."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import hpsearch
from hpsearch.errors import CheckpointError, TrainableError
from hpsearch.trainable.running_trial import RunningTrial
from tests.hpsearch.support.command_line import environment, write_sweep

SCRIPT = """
import random

import hpsearch

trial = hpsearch.current_trial({"lr": 0.5, "hidden": 8, "optimizer": {"nesterov": False}, "name": "a"})
total = trial.checkpoint["total"] if trial.checkpoint is not None else 0.0
for _ in trial.iterations():
    total += trial.params["lr"] * random.random()
    trial.report({"total": total}, checkpoint={"total": total})
print(trial.params)
"""


def started(folder: Path, *words: str, script: str = SCRIPT, **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script)
    environ = {name: value for name, value in environment(**variables).items() if name != "HPSEARCH_TRIAL"}
    command = [sys.executable, "train.py", *words]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)


def totals(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return [line.split("  ")[1] for line in done.stdout.splitlines() if line.startswith("iteration")]


def test_it_takes_its_parameters_from_the_command_line_over_the_defaults(tmp_path: Path) -> None:
    done = started(tmp_path, "--lr=2", "--optimizer.nesterov", "True", "--name=1")
    assert done.stdout.splitlines()[-1] == str({"lr": 2.0, "hidden": 8, "optimizer": {"nesterov": True}, "name": "1"})
    assert len(totals(done)) == 3
    assert "no sweep runs this script, so it runs by itself: lr=2.0 hidden=8" in done.stderr


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--lrr=2", "--lrr: must be a parameter of this script: did you mean lr?"),
        ("--lr=fast", "--lr: must be of the type of its default 0.5, float, got 'fast'"),
        ("--hidden=1.5", "--hidden: must be of the type of its default 8, int, got '1.5'"),
        ("--optimizer.nesterov=1", "--optimizer.nesterov: must be of the type of its default False, bool, got '1'"),
    ],
)
def test_a_wrong_command_line_ends_it(word: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hpsearch.trainable.alone import script_alone

    monkeypatch.setattr(sys, "argv", ["train.py", word])
    defaults = {"lr": 0.5, "hidden": 8, "optimizer": {"nesterov": False}, "name": "a"}
    with pytest.raises(TrainableError) as raised:
        script_alone(defaults, None)
    assert str(raised.value) == message


def test_it_resumes_from_the_checkpoint_in_its_directory_to_the_bit(tmp_path: Path) -> None:
    first = started(tmp_path, HPSEARCH_END="2", HPSEARCH_DIRECTORY="kept")
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["hpsearch-checkpoint-2"]
    second = started(tmp_path, HPSEARCH_END="4", HPSEARCH_DIRECTORY="kept")
    whole = started(tmp_path, HPSEARCH_END="4")
    assert totals(first) + totals(second) == totals(whole)
    assert len(totals(whole)) == 4
    other = started(tmp_path, HPSEARCH_END="4", HPSEARCH_SEED="1")
    assert totals(other) != totals(whole)


def test_a_script_with_its_own_parser_and_loop_runs_to_its_end(tmp_path: Path) -> None:
    script = """
import argparse

import hpsearch

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
args = parser.parse_args()
trial = hpsearch.current_trial()
for epoch in range(args.epochs):
    trial.report({"epoch": epoch})
print("end", trial.params)
"""
    done = started(tmp_path, "--epochs=4", script=script)
    assert len(totals(done)) == 4
    assert done.stdout.splitlines()[-1] == "end {'epochs': 4}"


def test_a_script_of_several_ranks_is_refused(tmp_path: Path) -> None:
    done = started(tmp_path, WORLD_SIZE="2", RANK="0")
    assert done.returncode == 1
    assert "must run in one process, but WORLD_SIZE is 2" in done.stderr


def test_in_a_sweep_defaults_are_for_what_the_sweep_leaves_out(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    sweep = {"metric": {"name": "total"}, "run_cap": 1, "parameters": {"lr": {"value": 0.25}}}
    path = write_sweep(tmp_path / "sweep.yaml", None, program=str(tmp_path / "train.py"), **sweep)
    command = [str(Path(sys.executable).parent / "hpsearch"), "run", str(path), "--backend", "inline", "--dir", "study"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    log = (tmp_path / "study/trials/00000/1/output.log").read_text()
    assert log.strip() == str({"lr": 0.25, "hidden": 8, "optimizer": {"nesterov": False}, "name": "a"})


# Tried out.


def falling(trial: RunningTrial) -> None:
    loss = 8.0 if trial.checkpoint is None else float(trial.checkpoint["loss"])
    for _ in trial.iterations():
        loss *= trial.params["rate"]
        trial.report({"loss": loss, "noise": torch.rand(1)}, checkpoint={"loss": loss})


class Falling:
    def __init__(self, trial: RunningTrial) -> None:
        self.rate, self.loss, self.is_closed = trial.params["rate"], 8.0, False

    def step(self) -> dict[str, float]:
        self.loss *= self.rate
        return {"loss": self.loss}

    def state_dict(self) -> dict[str, float]:
        return {"loss": self.loss}

    def load_state_dict(self, state: Any) -> None:
        self.loss = state["loss"]


@pytest.mark.parametrize("trainable", [falling, Falling, f"{__name__}:Falling"])
def test_a_trainable_is_tried_out(trainable: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tried = hpsearch.try_out(trainable, rate=0.5)
    assert [metrics["loss"] for metrics in tried] == [4.0, 2.0, 1.0]
    assert [line.split("  ")[:2] for line in capsys.readouterr().out.splitlines()] == [
        ["iteration 1", "loss 4"],
        ["iteration 2", "loss 2"],
        ["iteration 3", "loss 1"],
    ]
    assert hpsearch.try_out(trainable, {"rate": 0.25}, rate=0.5) == tried
    again = [hpsearch.try_out(trainable, rate=0.5, max_iter=end, directory=tmp_path) for end in (1, 3)]
    assert [*again[0], *again[1]] == tried


def test_a_mistake_in_what_is_tried_out_is_raised() -> None:
    with pytest.raises(TrainableError, match=r"must have the parameter 'rate', but no sweep gives it"):
        hpsearch.try_out(falling, lr=0.1)
    with pytest.raises(TrainableError, match="must report at least once"):
        hpsearch.try_out(lambda trial: None)
    with pytest.raises(CheckpointError, match="SimpleNamespace"):
        hpsearch.try_out(lambda trial: trial.report({"loss": 1}, checkpoint={"state": SimpleNamespace()}), max_iter=1)
    with pytest.raises(ZeroDivisionError):
        hpsearch.try_out(lambda trial: trial.report({"loss": 1 / 0}))
    assert not list(Path(tempfile.gettempdir()).glob(f"hpsearch-{os.getpid()}-*"))
