"""Downpour SGD beside synchronous training where one worker has a third of the others' speed: time to one accuracy.

Four ranks, of which one serves under the strategies with a server. A worker computes on a device of its own, which is
stood in for by a wait for each row: on the cores of one machine a slow worker would make the others quicker. The small
perceptron itself, on scikit-learn's digits, is computed beside that. All step with Adagrad, each at the best of three
rates. The time ends with the first epoch whose validation has the accuracy.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # which optimizers import when the first is made: here it is there before ranks are forked
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from hpsearch_comm import Group
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.trainer import Trainer
from tests.benchmarks.figures import Figure
from tests.benchmarks.plot import Line, draw
from tests.comm.process_ranks import ProcessRanks

IMAGES = Path(__file__).parents[2] / "docs" / "images"
RANKS, BATCH, ACCURACY, MOST_EPOCHS = 4, 64, 0.92, 20
SECONDS_PER_ROW = 0.003
SLOW = 1
"""The rank that may be slow; it trains under each strategy."""
WAYS: dict[str, Mapping[str, Any]] = {
    "allreduce": {"strategy": "allreduce"},
    "parameter server": {"strategy": "parameter_server"},
    "downpour": {"strategy": "downpour"},
    "downpour, delay of 4": {"strategy": "downpour", "max_delay": 4},
}
SPEEDS = {1.0: "all equally fast", 3.0: "one at a third"}
"""By how many times as long the slow worker takes."""
RATES = {"allreduce": 0.05, "parameter server": 0.05, "downpour": 0.05, "downpour, delay of 4": 0.05}
"""The best of 0.02, 0.05 and 0.1, by the epochs that they take where all are equally fast."""


class Digits(Trainer):
    """A perceptron, whose loss takes as long as the device of its rank does."""

    def build(self, params: Mapping[str, Any]) -> Parts:
        digits = load_digits()
        inputs, targets = torch.tensor(digits.data).float() / 16.0, torch.tensor(digits.target).long()
        torch.manual_seed(params["seed"])
        order = torch.randperm(len(inputs))
        train, validation = order[360:], order[:360]
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

        def loss(output: Tensor, target: Tensor) -> Tensor:
            if model.training:
                time.sleep(len(target) * params["seconds_per_row"])
            return functional.cross_entropy(output, target)

        return Parts(
            model,
            torch.optim.Adagrad(model.parameters(), lr=params["lr"]),
            loss,
            train=(inputs[train], targets[train]),
            validation=(inputs[validation], targets[validation]),
            metrics={"accuracy": lambda output, target: (output.argmax(1) == target).float()},
            batch_size=BATCH,
        )


@dataclass(frozen=True, slots=True)
class _Trial:
    group: Group
    parallel: Mapping[str, Any]
    params: Mapping[str, Any]
    scaling: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 7


def timed(group: Group, way: str, lr: float, seed: int, seconds_per_row: float, times: float) -> tuple[float, int]:
    """Return the seconds until the accuracy is reached, and the epochs; called on a rank.

    Args:
        group: All ranks.
        way: One of `WAYS`.
        lr: The rate.
        seed: Of model, rows and order.
        seconds_per_row: That a worker waits.
        times: As long as the others the slow one waits.
    """
    torch.set_num_threads(1)
    wait = seconds_per_row * (times if group.rank == SLOW else 1.0)
    params = {"lr": lr, "seed": seed, "seconds_per_row": wait}
    trainer = Digits(_Trial(group, WAYS[way], params, seed=seed))
    group.barrier()
    began = time.perf_counter()
    while trainer.step()["accuracy"] < ACCURACY and trainer.epoch < MOST_EPOCHS:
        pass
    return time.perf_counter() - began, trainer.epoch


def measure(rounds: int) -> list[Figure]:
    """Train in each way, with equal workers and with a slow one; each round has a seed of its own."""
    found: dict[tuple[str, float], list[tuple[float, int]]] = {}
    with ProcessRanks("tests.benchmarks.downpour") as ranks:
        for seed in range(rounds):
            for times in SPEEDS:
                for way in WAYS:
                    outcome = ranks.call(RANKS, "timed", way, RATES[way], seed, SECONDS_PER_ROW, times)[0]
                    assert not outcome.error, outcome
                    found.setdefault((way, times), []).append(tuple(outcome.result))
                    print(way, times, *outcome.result, file=sys.stderr, flush=True)
    _draw(found)
    figures = []
    for times, who in SPEEDS.items():
        for what, unit, place in (("time", "s", 0), ("epochs", "", 1)):
            of = functools.partial(_values, found, times, place)
            for way in list(WAYS)[1:]:
                name = f"{what} to {ACCURACY:.0%}, {who}, {way}"
                figures.append(Figure(name, unit, of(way), "", "allreduce", of("allreduce")))
    return figures


def _draw(found: Mapping[tuple[str, float], list[Any]]) -> None:
    lines = []
    for way in WAYS:
        runs = zip(*(_values(found, times, 0, way) for times in SPEEDS), strict=True)
        lines.append(Line(way, list(runs)))
    title = f"Seconds to {ACCURACY:.0%} on the digits with four ranks, mean and range of some seeds"
    drawn = draw(title, "speed of the workers", "seconds", lines, (2, 5, 10, 20, 50, 100), list(SPEEDS.values()))
    (IMAGES / "downpour.svg").write_text(drawn)


def _values(found: Mapping[tuple[str, float], list[Any]], times: float, place: int, way: str) -> list[float]:
    return [float(values[place]) for values in found[way, times]]
