"""Trains a pack under a limit of addresses, in a process that a server of forks makes for it."""

from __future__ import annotations

import ctypes
import json
import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from hpsearch_trainers import Parts, Trainer
from hpsearch_trainers.lanes import Fuser

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
# Else glibc keeps some tens of MiB of what has been freed, how much follows from the order of all allocations, and so
# from how long a try took: as much as four lanes take.
for option in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
    ctypes.CDLL(None).mallopt(option, 1 << 20)

torch.set_num_threads(1)
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # no test of these is of a GPU's memory, or of its bits
torch.optim.SGD([torch.zeros(1)], 0.1)  # the first optimizer makes torch import as much again: once, before the forks


class Wide(Trainer):
    """Few parameters, and much memory for what lies between them."""

    def build(self, params: Mapping[str, Any]) -> Parts:
        rows = torch.randn(1024, 16, generator=torch.Generator().manual_seed(1))
        model = nn.Sequential(nn.Linear(16, 1024), nn.ReLU(), nn.Linear(1024, 2))
        optimizer = torch.optim.SGD(model.parameters(), params["lr"])
        targets = (rows.sum(1) > 0).long()
        train, validation = (rows[:768], targets[:768]), (rows[768:], targets[768:])
        return Parts(model, optimizer, self.loss, train, validation, batch_size=768)

    def loss(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if self.params["greedy"]:
            torch.empty(self.params["greedy"])
        return functional.cross_entropy(output, targets)


@dataclass
class Trial:
    params: dict[str, Any]
    seed: int


def made(greedy: list[int]) -> list[Trainer]:
    trainers: list[Trainer] = []
    for seed, greed in enumerate(greedy):
        torch.manual_seed(seed)
        trainers.append(Wide(Trial({"lr": 0.01 * (1 + seed), "greedy": greed}, seed)))
    return trainers


def plain(metrics: dict[str, float] | None) -> dict[str, str] | None:
    if metrics is None:
        return None
    return {name: value.hex() for name, value in metrics.items() if name != "data_wait"}


def step(greedy: list[int], spare: int, most: int, answer: str) -> None:
    """Train three epochs with so many bytes beyond what the process has before; write a line for each step."""
    alone = [[plain(one.step()) for _ in range(3)] if not one.params["greedy"] else [None] * 3 for one in made(greedy)]
    trainers, fuser = made(greedy), Fuser(most=most, fewest=2)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (held + spare, resource.RLIM_INFINITY))
    with Path(answer).open("w") as file:
        for epoch in range(3):
            for number, stepped in enumerate(fuser.step(trainers)):
                told = [number, epoch, stepped.lanes, stepped.alone_because, repr(stepped.error)]
                print(json.dumps([*told, plain(stepped.metrics) == alone[number][epoch]]), file=file)
