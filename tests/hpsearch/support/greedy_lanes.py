"""A sweep whose process may have so much memory, of which one trial takes all; called in child processes."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import hpsearch
from hpsearch_trainers import Parts
from tests.hpsearch.support.lane_sweeps import search
from tests.hpsearch.support.lane_trainables import Small

torch.set_num_threads(1)
torch.optim.SGD([torch.zeros(1)], 0.1)  # the first optimizer makes torch import as much again: once, before the forks


class Greedy(Small):
    """One whose `fault` is where it takes all the memory that there is, and holds on to it."""

    def build(self, params: Mapping[str, Any]) -> Parts:
        """Make a network, after it took all where that is its fault."""
        self._held: list[Tensor] = []
        if params["fault"] == "at once":
            torch.empty(1 << 45)
        if params["fault"] == "model":
            self._take()
        return super().build({**params, "fault": "greedy" if params["fault"] == "loss" else ""})

    def _greedy_loss(self, output: Tensor, targets: Tensor) -> Tensor:
        if self.epoch == 1:
            self._take()
        return functional.cross_entropy(output, targets)

    def _take(self) -> None:
        while True:
            self._held.append(torch.zeros(1 << 20))


def begin(study: str, faults: list[str], count: int, lanes: int, spare: int) -> None:
    """Run the first of these trials, so many, with so many bytes beyond what the process has before."""
    held = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    if spare:
        resource.setrlimit(resource.RLIMIT_AS, (held + spare, resource.RLIM_INFINITY))
    of_each = {"lr": 0.1, "hidden": 24}
    points = [{**of_each, "dropout": 0.1 * place, "fault": fault} for place, fault in enumerate(faults)]
    options: dict[str, Any] = {"early_terminate": None, "max_iter": 4, "points_to_try": points, "run_cap": count}
    search(Path(study), tuple({*faults}), trainable=Greedy, resources={"trials_per_worker": lanes}, **options)
    assert hpsearch.load(study).state == "finished"
