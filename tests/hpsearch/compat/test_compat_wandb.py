"""A script for W&B runs by another import: its config, its logs, its summary, under bayes and early_terminate."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import hpsearch
from hpsearch.compat import wandb
from hpsearch.compat.wandb_run import Config
from hpsearch.events import Finished
from hpsearch.trial import TrialState
from tests.hpsearch.support.command_line import call, environment
from tests.hpsearch.support.scripted import of_kind

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
            wandb.log({"loss": 9.0}, step=epoch)
            wandb.log({"loss": run.config.lr}, step=epoch)


GIVEN = {"method": "random", "metric": {"name": "loss"}, "parameters": {"lr": {"min": 0.0, "max": 1.0}}}


def test_sweep_and_agent_run_a_function(tmp_path):
    name = wandb.sweep(GIVEN, project="mine")
    study = wandb.agent(name, train, count=3, directory=tmp_path / "study", observers=[], progress=False)
    assert [row.iterations for row in study.trials] == [3, 3, 3]
    assert [row.value for row in study.trials] == [row.params["lr"] for row in study.trials]


def test_a_metric_in_the_summary_is_the_last_report(tmp_path):
    def summed() -> None:
        wandb.init()
        wandb.log({"other": 1})
        wandb.summary["loss"] = 0.25

    study = wandb.agent(wandb.sweep(GIVEN), summed, count=1, directory=tmp_path / "study", observers=[], progress=False)
    assert dict(study.row(0).metrics) == {"other": 1.0, "loss": 0.25}


def logged(tmp_path: Path, script: Callable[[], object], **sweep: object) -> list[Mapping[str, float]]:
    """Run a script as the only trial of a sweep; return what each of its reports holds."""
    given = {**GIVEN, "run_cap": 1, **sweep}
    wandb.agent(wandb.sweep(given), script, directory=tmp_path / "s", observers=[], progress=False)
    return [dict(report.metrics) for event in of_kind(tmp_path / "s", Finished) for report in event.reports]


def test_a_metric_that_was_logged_without_commit_is_reported_with_the_log_that_commits(tmp_path):
    def script() -> None:
        wandb.init()
        for epoch in range(2):
            wandb.log({"loss": 1.0 + epoch}, commit=False)
            wandb.log({"epoch": epoch})
        wandb.log({"loss": 5.0}, commit=False)  # W&B writes it when the run ends

    assert logged(tmp_path, script) == [{"loss": 1.0, "epoch": 0.0}, {"loss": 2.0, "epoch": 1.0}, {"loss": 5.0}]


def test_several_metrics_may_be_logged_one_after_the_other(tmp_path):
    def script() -> None:
        wandb.init()
        for epoch in range(2):
            wandb.log({"loss": 1.0 + epoch})
            wandb.log({"accuracy": 0.5})
        wandb.log({"loss": 7.0})

    metrics = [{"name": "loss"}, {"name": "accuracy", "goal": "maximize"}]
    reports = logged(tmp_path, script, metric=metrics)
    assert reports == [{"loss": 1.0, "accuracy": 0.5}, {"loss": 2.0, "accuracy": 0.5}]
    (log,) = tmp_path.rglob("output.log")
    assert "loss was logged without accuracy, and is not reported" in log.read_text()


def test_what_is_logged_after_the_metric_belongs_to_its_epoch(tmp_path):
    def script() -> None:
        wandb.init()
        for epoch in range(2):
            wandb.log({"loss": 1.0 + epoch})
            wandb.log({"other": 5 + epoch})

    assert logged(tmp_path, script) == [{"loss": 1.0, "other": 5.0}, {"loss": 2.0, "other": 6.0}]


def test_what_is_logged_by_batch_stays_with_its_epoch_before_and_after_the_metric(tmp_path):
    def script() -> None:
        wandb.init()
        for epoch in range(2):
            for batch in range(3):
                wandb.log({"train": 10 * epoch + batch})
            wandb.log({"loss": 1.0 + epoch})
            for batch in range(2):
                wandb.log({"test": 10 * epoch + batch})

    reports = logged(tmp_path, script)
    assert reports == [{"train": 2.0, "loss": 1.0, "test": 1.0}, {"train": 12.0, "loss": 2.0, "test": 11.0}]


def test_the_logs_of_one_step_are_one_report_and_the_last_value_of_a_name_counts(tmp_path):
    def script() -> None:
        wandb.init()
        for epoch in range(2):
            wandb.log({"loss": 9.0}, step=epoch)
            wandb.log({"loss": 1.0 + epoch}, step=epoch)
            wandb.log({"other": 5 + epoch}, step=epoch)

    assert logged(tmp_path, script) == [{"loss": 1.0, "other": 5.0}, {"loss": 2.0, "other": 6.0}]


def test_a_log_that_commits_is_reported_at_once(tmp_path):
    def script() -> None:
        run = wandb.init()
        wandb.log({"loss": 1.0}, commit=True)
        assert run.step == 1
        wandb.log({"loss": 2.0}, step=5, commit=True)
        wandb.log({"loss": 3.0}, step=5)  # W&B keeps nothing for a step that is over

    assert logged(tmp_path, script) == [{"loss": 1.0}, {"loss": 2.0}]


def test_the_last_epoch_of_a_function_that_fails_is_reported(tmp_path):
    def script() -> None:
        wandb.init()
        wandb.log({"loss": 1.0})
        wandb.log({"loss": 2.0})
        raise ValueError("broken")

    logged(tmp_path, script)
    (row,) = hpsearch.load(tmp_path / "s").trials
    assert (row.state, row.iterations, dict(row.metrics)) == (TrialState.FAILED, 2, {"loss": 2.0})


def two_epochs(trial: object) -> None:
    """Log as a function does that `hpsearch.search` calls."""
    wandb.init()
    for epoch in range(2):
        wandb.log({"loss": 1.0 + epoch})


def test_a_function_that_uses_no_agent_has_its_last_epoch_reported(tmp_path):
    sweep = {**GIVEN, "run_cap": 1}
    study = hpsearch.search(two_epochs, sweep, backend="inline", directory=tmp_path / "s", progress=False, observers=[])
    assert study.curves()[0] == [(1, 1.0), (2, 2.0)]


def test_a_function_whose_run_ends_with_an_exit_code_has_failed_and_its_summary_is_not_reported(tmp_path):
    def script() -> None:
        wandb.init()
        wandb.log({"loss": 1.0})
        wandb.summary["loss"] = 0.0
        wandb.finish(exit_code=1)

    logged(tmp_path, script)
    (row,) = hpsearch.load(tmp_path / "s").trials
    assert (row.state, dict(row.metrics)) == (TrialState.FAILED, {"loss": 1.0})
    assert "finish(exit_code=1)" in str(row.failure)


def test_without_a_metric_each_step_is_one_report(tmp_path):
    def script() -> None:
        wandb.init()
        for epoch in range(2):
            wandb.log({"train": epoch}, step=epoch)
            wandb.log({"validation": 10 + epoch}, step=epoch)
        wandb.log({"picture": wandb.Image([[1]])})

    reports = logged(tmp_path, script, metric=None)
    assert reports == [{"train": 0.0, "validation": 10.0}, {"train": 1.0, "validation": 11.0}]


def test_a_function_that_raises_has_failed_though_its_summary_holds_the_metric(tmp_path):
    def script() -> None:
        wandb.init()
        wandb.summary["loss"] = 1.0
        raise ValueError("broken")

    logged(tmp_path, script, early_terminate={"type": "bands", "min_iter": 1, "max_iter": 1})
    (row,) = hpsearch.load(tmp_path / "s").trials
    assert (row.state, row.iterations) == (TrialState.FAILED, 0)


def test_an_agent_that_is_called_again_goes_on_with_the_sweep(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = wandb.sweep(GIVEN)
    first = wandb.agent(name, train, count=2, observers=[], progress=False)
    again = wandb.agent(name, train, count=2, observers=[], progress=False)
    assert again.directory == first.directory
    assert len({row.params["lr"] for row in again.trials}) == 4


def test_an_agent_that_was_interrupted_goes_on_with_the_sweep_when_it_is_called_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = wandb.sweep(GIVEN)

    def interrupts(row: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        wandb.agent(name, train, count=2, observers=[], progress=False, callbacks=[interrupts])
    directory = vars(stopped.value)["directory"]
    again = wandb.agent(name, train, count=2, observers=[], progress=False)
    assert (again.directory, again.state) == (directory, "finished")


def test_a_config_can_be_copied():
    config = Config()
    config.begin({"depth": 2}, {"lr": 0.1})
    for other in (copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert dict(other) == {"depth": 2, "lr": 0.1}
        other.lr = 0.2
        same: Any = other
        same |= {"lr": 0.2, "width": 3}
        assert (other.lr, other.width) == (0.1, 3)


def test_what_it_does_not_have_is_named():
    with pytest.raises(AttributeError, match="has no 'agnet'; it has agent, config"):
        _ = wandb.agnet
    with pytest.raises(hpsearch.SweepError, match=r"sweep_id must be what wandb\.sweep gave"):
        wandb.agent("us/mine/x8k2", train)
    with pytest.raises(hpsearch.SweepError, match=r"wandb\.log must come after wandb\.init"):
        wandb.log({"loss": 1.0})


def run_script(folder: Path, capsys: pytest.CaptureFixture[str], script: str, metric: str = "val_loss") -> str:
    """Run one trial of a script; return what the sweep says of it."""
    (folder / "train.py").write_text(script)
    (folder / "one.yaml").write_text(
        f"program: train.py\nmethod: random\nmetric: {{name: {metric}}}\nrun_cap: 1\n"
        "parameters: {lr: {values: [0.5]}}\n"
    )
    return call(capsys, "run", "one.yaml", "--backend", "inline", "--dir", "study").err


@pytest.mark.parametrize("end", ["", "wandb.finish()", "with run: pass"])
def test_a_metric_that_was_never_logged_is_named_with_what_was(tmp_path, monkeypatch, capsys, end):
    monkeypatch.chdir(tmp_path)
    logs = "wandb.log({'val/loss': 1, 'acc': 2, 'n': 'text'})"
    script = f"import hpsearch.compat.wandb as wandb\nrun = wandb.init()\n{logs}\n{end}\n"
    said = run_script(tmp_path, capsys, script)
    assert "a run must log the sweep's metric 'val_loss', but this one logged 'val/loss', 'acc': did you mean" in said


@pytest.mark.parametrize("end", ["wandb.finish(exit_code=3)", "run.finish(exit_code=3)"])
def test_a_script_whose_run_ends_with_an_exit_code_has_failed(tmp_path, monkeypatch, capsys, end):
    monkeypatch.chdir(tmp_path)
    logs = "wandb.log({'val_loss': 1}); wandb.log({'val_loss': 2}); wandb.log({'other': 3})"
    run_script(tmp_path, capsys, f"import hpsearch.compat.wandb as wandb\nrun = wandb.init()\n{logs}\n{end}\n")
    (row,) = hpsearch.load("study").trials
    assert (row.state, dict(row.metrics)) == (TrialState.FAILED, {"val_loss": 2.0, "other": 3.0})
    assert "finish(exit_code=3)" in str(row.failure)


@pytest.mark.exhaustive
def test_a_script_whose_run_failed_by_an_error_is_described_by_that_error(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    script = "import hpsearch.compat.wandb as wandb\nwith wandb.init():\n    wandb.log({'val_loss': 1})\n    1 / 0\n"
    run_script(tmp_path, capsys, script)
    (row,) = hpsearch.load("study").trials
    assert (row.state, row.iterations) == (TrialState.FAILED, 1)
    assert "ZeroDivisionError" in str(row.failure)


@pytest.mark.parametrize("metric", ["loss ", " loss"])
def test_a_metric_that_is_logged_without_a_blank_of_its_name_is_told_at_its_third_log(tmp_path, metric):
    logs = []

    def train() -> None:
        wandb.init()
        for epoch in range(10):
            logs.append(epoch)
            wandb.log({"train": 1})
            wandb.log({"loss": epoch})

    sweep = {**GIVEN, "metric": {"name": metric}}
    with pytest.raises(hpsearch.TrainableError, match=f"'{metric}', but this one logged 'loss': did you mean 'loss'"):
        wandb.agent(wandb.sweep(sweep), train, count=1, directory=tmp_path / "s", progress=False)
    assert logs == [0, 1, 2]


def test_a_metric_may_have_a_name_that_differs_from_another_ones_by_capitals(tmp_path):
    def script() -> None:
        wandb.init()
        for epoch in range(4):
            wandb.log({"Loss": epoch})
        wandb.log({"loss": 1.0})

    assert logged(tmp_path, script) == [{"loss": 1.0, "Loss": 3.0}]


def test_a_function_that_never_logs_the_metric_ends_the_sweep_with_what_it_logged(tmp_path):
    def train() -> None:
        with wandb.init():
            wandb.log({"other": 1})

    with pytest.raises(
        hpsearch.TrainableError, match="'loss', but this one logged 'other': report it, or name another"
    ):
        wandb.agent(wandb.sweep(GIVEN), train, count=1, directory=tmp_path / "s", progress=False)


@pytest.mark.parametrize("after", [False, True])
def test_a_config_that_is_assigned_is_defaults_and_hides_nothing_that_the_sweep_chose(
    tmp_path, monkeypatch, capsys, after
):
    monkeypatch.chdir(tmp_path)
    lines = ["wandb.config = {'lr': 99, 'epochs': 2}", "run = wandb.init(config={'other': 3})"]
    script = "\n".join(
        [
            "import hpsearch.compat.wandb as wandb",
            *(reversed(lines) if after else lines),
            "config = wandb.config",
            "assert (config.lr, config.epochs, config.other) == (0.5, 2, 3), dict(config)",
            "assert run.config is wandb.config",
            "run.summary.val_loss = config.lr",
            "assert run.summary.val_loss == wandb.summary['val_loss'] == 0.5",
            "assert run.get_url() == ''",
            "run.alert(title='x', level=wandb.AlertLevel.WARN)",
        ]
    )
    run_script(tmp_path, capsys, script)
    assert hpsearch.load("study").best_value == 0.5


def test_an_assigned_config_stays_the_default_of_each_run(monkeypatch):
    monkeypatch.setitem(vars(wandb), "_assigned", {})
    wandb.config = {"a": 1}  # type: ignore[assignment]
    assert isinstance(wandb.config, Config)
    for _ in range(2):
        wandb.init(config={"b": 2})
        assert dict(wandb.config) == {"a": 1, "b": 2}
        wandb.finish()
