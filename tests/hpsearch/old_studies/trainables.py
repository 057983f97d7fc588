"""What the old studies train: cheap, with checkpoints, failures, NaN, and several metrics."""

from __future__ import annotations

import math
import random

import numpy as np
import torch

from hpsearch import RunningTrial


def train(trial: RunningTrial) -> None:
    """Report a score that hangs on all three global generators; raise, or give NaN, for some params."""
    width, rate = trial.params["model"]["width"], trial.params["optimizer"]["lr"]
    weight = torch.zeros(2) if trial.checkpoint is None else trial.checkpoint["weight"]
    for iteration in trial.iterations():
        if width == 8 and iteration == 2:
            raise ValueError(f"width {width} is bad luck")
        noise = torch.rand(2) + random.random() + float(np.random.rand())
        weight = weight + rate * noise
        score = math.nan if width == 32 and iteration >= 3 else float(weight.sum()) / (1 + abs(math.log10(rate) + 2))
        trial.report({"score": score, "rate": rate, "spread": float(weight.std())}, checkpoint={"weight": weight})


def plain(trial: RunningTrial) -> None:
    """Report a loss without ever saving."""
    for iteration in trial.iterations():
        trial.report({"loss": trial.params["a"] / iteration + trial.params["b"]})
