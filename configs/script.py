"""A training script for `configs/script.yaml`: a linear classifier on the digits, an epoch per iteration."""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional

import hpsearch
from hpsearch_trainers.digits import digits


def main() -> None:
    """Train where the last segment ended, and report after each epoch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--weight_decay", type=float, required=True)
    parser.add_argument("--loss", required=True, help="a function of torch.nn.functional")
    args = parser.parse_args()
    trial = hpsearch.current_trial()

    data, loss = digits(), getattr(functional, args.loss)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    if trial.checkpoint is not None:
        model.load_state_dict(trial.checkpoint["model"])
        optimizer.load_state_dict(trial.checkpoint["optimizer"])

    for _ in trial.iterations():
        for rows in torch.randperm(len(data.labels)).split(32):
            optimizer.zero_grad()
            loss(model(data.images[rows]), data.labels[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            correct = model(data.validation_images).argmax(1) == data.validation_labels
        trial.report(
            {"accuracy": correct.float().mean()},
            checkpoint=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        )


if __name__ == "__main__":
    main()
