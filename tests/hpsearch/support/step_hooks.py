"""Trainers of which some have a hook of their optimizer's steps, and others' schedules a memory of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from hpsearch_trainers import Parts, Trainer

INPUTS = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
TARGETS = (INPUTS[:, 0] * INPUTS[:, 1] > 0).long()


class Clipped(Trainer):
    """Clips its weights after each step, as in Arjovsky et al. 2017, or counts in its schedule, or does neither."""

    def build(self, params: Mapping[str, Any]) -> Parts:
        """Make a network of one shape for all."""
        model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=params["lr"])
        data = INPUTS, TARGETS
        parts = Parts(model, optimizer, functional.cross_entropy, train=data, validation=data, batch_size=20)
        if params["way"] == "clipped":
            optimizer.register_step_post_hook(_clip)
        if params["way"] == "counting":
            calls: list[int] = []

            def schedule(epoch: float) -> float:
                calls.append(1)
                return 1 / (1 + 0.1 * len(calls))

            return dataclasses.replace(parts, schedule=schedule)
        return parts


def _clip(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.data = parameter.data.clamp(-0.05, 0.05)
