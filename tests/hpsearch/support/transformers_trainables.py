"""A small network on digits under Hugging Face's Trainer: dropout, AdamW, a schedule, shuffled batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from hpsearch import RunningTrial
from hpsearch.integrations.transformers import train as go_on
from hpsearch_trainers.digits import digits


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 10))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Rows(torch.utils.data.Dataset[dict[str, Any]]):
    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"x": self.images[row], "labels": self.labels[row]}


def train(trial: RunningTrial) -> None:
    from transformers import Trainer, TrainingArguments

    data = digits()
    given = {
        "output_dir": str(trial.directory / "its-own" if trial.params.get("elsewhere") else trial.directory),
        "num_train_epochs": 6,
        "eval_strategy": "epoch",
        "save_strategy": "no",
        "learning_rate": trial.params.get("lr", 3e-3),
        "per_device_train_batch_size": 50,
        "per_device_eval_batch_size": 400,
        "seed": trial.seed,
        "use_cpu": True,
        "disable_tqdm": True,
        "report_to": "none",
        "logging_strategy": "no",
        **trial.params.get("arguments", {}),
    }
    trainer = Trainer(
        model=Net(),
        args=TrainingArguments(**given),
        train_dataset=Rows(data.images[:500], data.labels[:500]),
        eval_dataset=Rows(data.validation_images, data.validation_labels),
    )
    go_on(trainer)
    print("ended", trainer.state.global_step)
