"""One bracket of successive halving on two workers: the same real training with and without elastic widths.

Fixed, each trial has one worker, and the last rungs leave the other idle: 54 iterations' time for 27 trials and R = 27.
If all work divided and nothing were lost, elastic widths would take 40.5.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

import hpsearch
from hpsearch.events import Finished, Started
from hpsearch.journal.journal import Journal
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.trainer import Trainer
from tests.benchmarks.figures import Figure
from tests.benchmarks.sweeps import WORKERS, local_ray

_ROWS, _BATCH = 2560, 128


class Convolutions(Trainer):
    """A network whose step takes over 20 ms on one core, on made-up images; its rate alone is searched for."""

    def build(self, params: Mapping[str, Any]) -> Parts:
        """Make it."""
        images = torch.randn(_ROWS, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        labels = (images.mean((1, 2, 3)) > 0).long()
        model = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(4),
            nn.Flatten(),
            nn.Linear(1024, 2),
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=params["lr"], momentum=0.9)
        data, validation = (images, labels), (images[:256], labels[:256])
        return Parts(model, optimizer, nn.functional.cross_entropy, data, validation, batch_size=_BATCH)


def measure(rounds: int) -> list[Figure]:
    """Run both in turns; a round takes some minutes."""
    ours: list[float] = []
    fixed: list[float] = []
    with local_ray():
        _bracket(elastic=False, longest=3)  # so that all find the workers warm
        for _ in range(rounds):
            ours.append(_bracket(elastic=True))
            fixed.append(_bracket(elastic=False))
    name = f"successive halving, 27 trials, R=27, {WORKERS} workers, elastic"
    return [Figure(name, "s", ours, "ratio at most 0.83", "fixed widths", fixed)]


def _bracket(elastic: bool, longest: int = 27) -> float:
    """Run it; return the seconds from the first start to the last end."""
    with tempfile.TemporaryDirectory(prefix="hpsearch-benchmark-") as scratch:
        directory = Path(scratch, "study")
        hpsearch.search(
            Convolutions,
            parameters={"lr": hpsearch.LogUniform(1e-3, 1e-1)},
            metric="validation_loss",
            early_terminate=hpsearch.SuccessiveHalving(max_iter=longest),
            resources={"workers": WORKERS, "max_workers_per_trial": WORKERS, "elastic": elastic},
            directory=directory,
            observers=[],
            progress=False,
        )
        with Journal.read(directory / "study.db") as journal:
            events = [(entry.time, entry.event) for entry in journal.entries()]
    began = min(when for when, event in events if isinstance(event, Started))
    ended = max(when for when, event in events if isinstance(event, Finished))
    widths = Counter(event.segment.width for _, event in events if isinstance(event, Started))
    if (len(widths) > 1) != elastic:
        raise RuntimeError(f"expected wide segments in the elastic bracket alone, got {dict(widths)}")
    return ended - began
