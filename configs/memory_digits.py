"""The script of `configs/memory_digits.yaml`: a perceptron on the digits, in a process with little memory."""

from __future__ import annotations

import argparse
import os
import resource
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import hpsearch
from hpsearch_trainers.digits import digits

MEMORY = 128 << 20
"""Bytes that training may allocate: too few for more than some 1,500 hidden units."""


def main() -> None:
    """Train where the last segment ended, and report after each epoch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--hidden", type=int, required=True)
    parser.add_argument("--batch_size", type=int, required=True)
    args = parser.parse_args()
    trial = hpsearch.current_trial()
    data = digits()
    in_use = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_DATA, (in_use + MEMORY, resource.RLIM_INFINITY))

    hidden = args.hidden
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
    model.append(nn.Linear(hidden, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    if trial.checkpoint is not None:
        model.load_state_dict(trial.checkpoint["model"])
        optimizer.load_state_dict(trial.checkpoint["optimizer"])

    for _ in trial.iterations():
        for rows in torch.randperm(len(data.labels)).split(args.batch_size):
            optimizer.zero_grad()
            functional.cross_entropy(model(data.images[rows]), data.labels[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            loss = functional.cross_entropy(model(data.validation_images), data.validation_labels)
        trial.report(
            {"loss": loss}, checkpoint=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        )


if __name__ == "__main__":
    main()
