"""A script for W&B runs by another import: its config, its logs, its summary, under bayes and early_terminate."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import hpsearch
from hpsearch.compat import wandb
from hpsearch.trial import TrialState
from tests.hpsearch.support.command_line import call, environment

SCRIPT = """\
import argparse
import hpsearch.compat.wandb as wandb

parser = argparse.ArgumentParser()
parser.add_argument("--learning_rate", type=float, default=0.1)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch_size", type=int, default=8)
args = parser.parse_args()

wandb.login()
run = wandb.init(project="quick", config=args)
config = wandb.config
config.update({"learning_rate": 99.0, "extra": 1})
wandb.watch(None)
wandb.define_metric("val_loss", summary="min")
assert config.learning_rate == args.learning_rate and config["extra"] == 1
for epoch in range(config.epochs):
    wandb.log({"train/loss": 1.0, "epoch": epoch})
    wandb.log({"train/loss": 2.0})
    loss = (config.learning_rate - 0.05) ** 2 + 1 / (epoch + 1)
    wandb.log({"val_loss": loss, "image": wandb.Image([[1]]), "note": "text", "nested": {"a": 3}})
wandb.finish()
"""

SWEEP = """\
program: train.py
method: bayes
metric: {name: val_loss, goal: minimize}
run_cap: 6
early_terminate: {type: hyperband, min_iter: 2, strict: true}
parameters:
  learning_rate: {min: 0.0001, max: 0.1}
  epochs: {value: 4}
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> hpsearch.Study:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "wandb.yaml").write_text(SWEEP)
    answer = call(capsys, "run", "wandb.yaml", "--backend", "inline", "--dir", "study")
    assert answer.code == 0, answer.err
    return hpsearch.load(tmp_path / "study")


def test_wandbs_quickstart_runs_under_bayes_and_hyperband(study):
    assert {row.state for row in study.trials} <= {TrialState.COMPLETE, TrialState.STOPPED}
    assert len(study.trials) == 6
    best = study.best_trial
    assert study.row(best.number).iterations == 4
    assert best.params["learning_rate"] <= 0.1
    assert study.curves()[0] == [
        (epoch, pytest.approx((study.row(0).params["learning_rate"] - 0.05) ** 2 + 1 / epoch))
        for epoch in range(1, 1 + len(study.curves()[0]))
    ]
    metrics = dict(study.row(best.number).metrics)
    assert {**metrics, "val_loss": 0} == {"train/loss": 2.0, "epoch": 3.0, "val_loss": 0, "nested.a": 3.0}


def test_outside_of_a_sweep_the_script_runs_and_says_that_nothing_is_kept(tmp_path):
    (tmp_path / "train.py").write_text(
        SCRIPT.replace("config.update", "config.setdefault; (lambda *_: None)").replace(' and config["extra"] == 1', "")
    )
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("no sweep runs this script") == 1
    assert done.stderr.count("wandb.watch(...) does nothing here") == 1


def train() -> None:
    """Train as W&B's guide to sweeps in Python does."""
    with wandb.init(config={"depth": 2}) as run:
        assert run.config.depth == 2
        for epoch in range(3):
            wandb.log({"loss": run.config.lr}, step=epoch)
            wandb.log({"loss": 9.0}, step=epoch)


GIVEN = {"method": "random", "metric": {"name": "loss"}, "parameters": {"lr": {"min": 0.0, "max": 1.0}}}


def test_sweep_and_agent_run_a_function(tmp_path):
    name = wandb.sweep(GIVEN, project="mine")
    study = wandb.agent(name, train, count=3, directory=tmp_path / "study", tensorboard=False, progress=False)
    assert [row.iterations for row in study.trials] == [3, 3, 3]
    assert [row.value for row in study.trials] == [row.params["lr"] for row in study.trials]


def test_a_metric_in_the_summary_is_the_last_report(tmp_path):
    def summed() -> None:
        wandb.init()
        wandb.log({"other": 1})
        wandb.summary["loss"] = 0.25

    study = wandb.agent(
        wandb.sweep(GIVEN), summed, count=1, directory=tmp_path / "study", tensorboard=False, progress=False
    )
    assert dict(study.row(0).metrics) == {"other": 1.0, "loss": 0.25}


def test_what_it_does_not_have_is_named():
    with pytest.raises(AttributeError, match="has no 'agnet'; it has agent, config"):
        _ = wandb.agnet
    with pytest.raises(hpsearch.SweepError, match=r"sweep_id must be what wandb\.sweep gave"):
        wandb.agent("us/mine/x8k2", train)
    with pytest.raises(hpsearch.SweepError, match=r"wandb\.log must come after wandb\.init"):
        wandb.log({"loss": 1.0})
