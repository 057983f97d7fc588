"""A script that logs to W&B by W&B's own library, itself or by another library, runs in a sweep as it is."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import hpsearch
from hpsearch.trial import TrialState
from tests.hpsearch.support.command_line import Answer, call

pytest.importorskip("wandb")

SWEEP = """\
program: train.py
method: grid
metric: {name: val_loss, goal: minimize}
parameters:
  lr: {values: [0.5, 0.25]}
  epochs: {value: 3}
"""

PLAIN = """\
    import argparse
    import wandb

    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=9.0)
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()
    with wandb.init(project="mine", config={"lr": 99.0, "extra": 1}) as run:
        wandb.config.update({"lr": 98.0}, allow_val_change=True)
        assert (run.config.lr, run.config["epochs"], run.config.extra) == (args.lr, 3, 1)
        for epoch in range(run.config.epochs):
            wandb.log({"train_loss": 1.0})
            run.log({"val_loss": run.config.lr / (epoch + 1), "note": "text"})
"""


@pytest.fixture
def run_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[Answer, hpsearch.Study]]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")

    def run(script: str, sweep: str = SWEEP) -> tuple[Answer, hpsearch.Study]:
        (tmp_path / "train.py").write_text(textwrap.dedent(script))
        (tmp_path / "sweep.yaml").write_text(sweep)
        answer = call(capsys, "run", "sweep.yaml", "--backend", "inline", "--dir", "study")
        return answer, hpsearch.load(tmp_path / "study")

    return run


def test_its_runs_have_the_trials_params_and_what_they_log_is_reported(run_script, tmp_path):
    answer, study = run_script(PLAIN)
    assert answer.code == 0, answer.err
    for row in study.trials:
        assert row.state is TrialState.COMPLETE
        assert study.curves()[row.number] == [(i, row.params["lr"] / i) for i in (1, 2, 3)]
        assert dict(row.metrics) == {"train_loss": 1.0, "val_loss": row.params["lr"] / 3}
        assert list((study.directory / "trials").glob(f"{row.number:05}/*/wandb/offline-run-*"))
    assert not (tmp_path / "wandb").exists()


@pytest.mark.exhaustive
def test_a_trial_that_the_scheduler_ends_ends_at_its_log(run_script):
    bands = SWEEP + "early_terminate: {type: hyperband, min_iter: 1, strict: true}\n"
    answer, study = run_script(PLAIN, bands.replace("[0.5, 0.25]", "[0.25, 0.5, 0.75]"))
    assert answer.code == 0, answer.err
    assert [(row.state.value, row.iterations) for row in study.trials] == [
        ("complete", 3),
        ("stopped", 1),
        ("stopped", 1),
    ]


BEGIN = "import wandb\nrun = wandb.init()\n"
ONE = SWEEP.replace("values: [0.5, 0.25]", "value: 0.5")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("script", "value", "message"),
    [
        ("run.summary['val_loss'] = 2.0\n", 2.0, ""),
        ("run.log({'val_loss': 3.0})\nwandb.init(reinit='return_previous').log({'val_loss': 2.0})\n", 2.0, ""),
        ("run.log({'val_loss': 2.0})\nraise ValueError('broken')\n", None, "broken"),
        ("run.log({'val_loss': 2.0})\nrun.finish(1)\n", None, "finish(exit_code=1)"),
    ],
)
def test_a_run_ends_as_its_script_does(run_script, script, value, message):
    _, study = run_script(BEGIN + script, ONE)
    (row,) = study.trials
    assert row.value == value
    assert message in (row.failure.message if row.failure else "")


@pytest.mark.exhaustive
def test_runs_after_one_another_are_all_reported(run_script):
    script = """\
        import wandb

        for fold in range(2):
            with wandb.init() as run:
                for epoch in range(2):
                    run.log({"val_loss": 10.0 * fold + epoch})
        run = wandb.init()
        run.log({"val_loss": 20.0})
        run.finish()
    """
    answer, study = run_script(script, ONE)
    assert answer.code == 0, answer.err
    assert study.curves()[0] == [(1, 0.0), (2, 1.0), (3, 10.0), (4, 11.0), (5, 20.0)]


@pytest.mark.exhaustive
def test_another_name_of_the_metric_ends_the_sweep(run_script):
    answer, _ = run_script(BEGIN + "run.log({'loss': 1.0})\n", ONE)
    assert answer.code == 1
    assert "sweep.yaml:3: metric.name: a run must log the sweep's metric 'val_loss', but this one logged" in answer.err


OWN = """\
    import json, os
    import wandb

    def report(value):
        with open(os.environ["HP" "SEARCH_REPORTS"], "a") as file:
            file.write(json.dumps({"val_loss": value}) + chr(10))

    run = wandb.init()
    for epoch in range(2):
        run.log({"val_loss": 1.0})
        run.log({"val_loss": 1.0})
        report(1.0)
"""


@pytest.mark.exhaustive
def test_reports_in_two_ways_are_an_error_that_names_both(run_script):
    answer, _ = run_script(OWN, ONE)
    assert answer.code == 1
    assert "a script must report in one way, but line " in answer.err
    assert "HPSEARCH_WANDB=off" in answer.err


@pytest.mark.exhaustive
def test_it_may_be_switched_off(run_script, monkeypatch):
    monkeypatch.setenv("HPSEARCH_WANDB", "off")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    _, study = run_script(OWN, ONE)
    assert [(row.state, row.iterations) for row in study.trials] == [(TrialState.COMPLETE, 2)]


@pytest.mark.exhaustive
def test_a_sitecustomize_of_the_users_runs_too(run_script, tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import builtins\nbuiltins.users_own = 7\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "own"))
    script = BEGIN + "run.log({'val_loss': users_own})\n"
    _, study = run_script(script, ONE)
    assert study.trials[0].value == 7.0


@pytest.mark.exhaustive
def test_a_process_of_the_script_reports_nothing_beside_it(run_script):
    script = """\
        import os, subprocess, sys
        import wandb

        run = wandb.init()
        run.log({"val_loss": 3.0})
        if child := os.fork():
            os.waitpid(child, 0)
        else:
            try:
                run.log({"val_loss": 99.0})
            finally:
                os._exit(0)
        again = "import wandb; run = wandb.init(); assert run.config.lr == 0.5; run.log({'val_loss': 77.0})"
        subprocess.run([sys.executable, "-c", again], check=True)
        run.log({"val_loss": 2.0})
    """
    answer, study = run_script(script, ONE)
    assert answer.code == 0, answer.err
    assert study.curves()[0] == [(1, 3.0), (2, 2.0)]


@pytest.mark.exhaustive
def test_two_runs_at_a_time_are_an_error(run_script):
    script = "wandb.init(reinit='create_new').log({'val_loss': 1})\nrun.log({'val_loss': 2})\n"
    answer, _ = run_script(BEGIN + script, ONE)
    assert answer.code == 1
    assert "a script must log to one run of W&B's after the other" in answer.err


LIGHTNING = """\
    import argparse
    import lightning as L
    import torch
    from lightning.pytorch.loggers import WandbLogger
    from torch.utils.data import DataLoader, TensorDataset

    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float)
    parser.add_argument("--epochs", type=int)
    args = parser.parse_args()


    class Line(L.LightningModule):
        def __init__(self, lr):
            super().__init__()
            self.save_hyperparameters()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch):
            loss = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch):
            self.log("val_loss", torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


    L.seed_everything(1)
    x = torch.linspace(-1, 1, 32)[:, None]
    data = DataLoader(TensorDataset(x, 2 * x), batch_size=8)
    trainer = L.Trainer(
        max_epochs=args.epochs, logger=WandbLogger(), log_every_n_steps=1, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, accelerator="cpu",
    )
    trainer.fit(Line(args.lr), data, data)
"""


@pytest.mark.exhaustive
def test_lightnings_logger_is_heard(run_script):
    answer, study = run_script(LIGHTNING)
    assert answer.code == 0, answer.err
    for row in study.trials:
        assert (row.state, row.iterations) == (TrialState.COMPLETE, 3)
        values = [value for _, value in study.curves()[row.number]]
        assert values == sorted(values, reverse=True)
        assert row.metrics["epoch"] == 2.0


TRANSFORMERS = """\
    import argparse
    import torch
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float)
    parser.add_argument("--epochs", type=int)
    args = parser.parse_args()
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    model = BertForSequenceClassification(BertConfig(vocab_size=8, max_position_embeddings=8, **shape))
    data = [{"input_ids": torch.tensor([i % 8] * 4), "labels": i % 2} for i in range(16)]
    arguments = TrainingArguments(
        "out", learning_rate=args.lr, num_train_epochs=args.epochs, eval_strategy="epoch", save_strategy="no",
        report_to="wandb", logging_steps=1, use_cpu=True, disable_tqdm=True,
    )
    Trainer(model, arguments, train_dataset=data, eval_dataset=data).train()
"""


@pytest.mark.exhaustive
def test_transformers_reports_to_it_are_heard(run_script):
    answer, study = run_script(TRANSFORMERS, ONE.replace("val_loss", "eval/loss"))
    assert answer.code == 0, answer.err
    (row,) = study.trials
    assert (row.state, row.iterations) == (TrialState.COMPLETE, 3)
    assert row.metrics["train/epoch"] == 3.0
