"""The trainable of `configs/cost_digits.yaml`: a perceptron on the digits, which counts its multiplications."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

import hpsearch
from hpsearch_trainers.digits import digits

BATCH = 32
PASSES = 3
"""Forward, and backward for the weights and for the inputs."""


def train(trial: hpsearch.RunningTrial) -> None:
    """Report after each epoch what all epochs have cost."""
    data = digits()
    hidden = trial.params["hidden"]
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=trial.params["lr"], momentum=0.9)
    multiplications = 0
    if trial.checkpoint is not None:
        model.load_state_dict(trial.checkpoint["model"])
        optimizer.load_state_dict(trial.checkpoint["optimizer"])
        multiplications = trial.checkpoint["multiplications"]

    for _ in trial.iterations():
        for batch in torch.randperm(len(data.images)).split(BATCH):
            optimizer.zero_grad()
            functional.cross_entropy(model(data.images[batch]), data.labels[batch]).backward()
            optimizer.step()
        multiplications += PASSES * len(data.images) * hidden * (64 + 10)
        with torch.no_grad():
            right = model(data.validation_images).argmax(1) == data.validation_labels
        trial.report(
            {"accuracy": float(right.float().mean()), "multiplications": multiplications},
            checkpoint={
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "multiplications": multiplications,
            },
        )
