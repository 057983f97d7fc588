"""Allreduce beside one and two parameter servers: a step of a small and of a big model, on networks of three speeds.

Four ranks, each on a host of its own (see `slow_network`): all of them train, or one or two of them serve. The global
batch is the same, so that those who train have more rows where some serve. Timed are steps within an epoch.
`python -m tests.benchmarks.parameter_servers` is one rank; each line that it reads is a turn.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import hpsearch_comm as comm
from hpsearch_trainers.parts import Parts
from hpsearch_trainers.trainer import Trainer
from tests.benchmarks.figures import Figure
from tests.benchmarks.plot import Line, draw
from tests.benchmarks.slow_network import SlowNetwork, ask, ranks

IMAGES = Path(__file__).parents[2] / "docs" / "images"
RANKS, ROWS, BATCH = 4, 144, 24
GIGABITS = (10.0, 1.0, 0.1)
WAYS: dict[str, Mapping[str, Any]] = {
    "allreduce": {"strategy": "allreduce"},
    "one server": {"strategy": "parameter_server", "servers": 1},
    "two servers": {"strategy": "parameter_server", "servers": 2},
}
HIDDEN = {"small": 64, "big": 1024}
"""By model: 17 thousand parameters in four layers, and 2.2 million."""


class _Timed(Trainer):
    """Classifies noise; keeps when each step ended."""

    def build(self, params: Mapping[str, Any]) -> Parts:
        generator = torch.Generator().manual_seed(1)
        data = torch.randn(ROWS, 128, generator=generator), torch.randint(10, (ROWS,), generator=generator)
        hidden = params["hidden"]
        torch.manual_seed(1)
        layers = [nn.Linear(128, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden)]
        model = nn.Sequential(*layers, nn.ReLU(), nn.Linear(hidden, 10))
        self.ended: list[float] = []
        return Parts(
            model, torch.optim.SGD(model.parameters(), lr=0.01), functional.cross_entropy, data, batch_size=BATCH
        )

    def _step(self, *arguments: Any) -> None:
        super()._step(*arguments)
        self.ended.append(time.perf_counter())


@dataclass(frozen=True, slots=True)
class _Trial:
    group: comm.Group
    parallel: Mapping[str, Any]
    params: Mapping[str, Any]
    scaling: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 7


def _rank() -> None:
    torch.set_num_threads(1)
    with comm.init() as group:
        for line in sys.stdin:
            way, model = json.loads(line)
            trainer = _Timed(_Trial(group, WAYS[way], {"hidden": HIDDEN[model]}))
            trainer.step()
            trainer.ended.clear()
            trainer.step()
            took = [after - before for before, after in zip(trainer.ended, trainer.ended[1:], strict=False)]
            if group.rank == 0:
                print(statistics.median(took), flush=True)


def measure(rounds: int) -> list[Figure]:
    """Time each way on each network, one after the other in each round, and draw both models."""
    seconds: dict[tuple[str, float, str], list[float]] = {}
    with SlowNetwork(RANKS) as network, ranks(network, __name__, RANKS) as started:
        for _ in range(rounds):
            for gigabits in GIGABITS:
                network.limit(gigabits)
                for model in HIDDEN:
                    for way in WAYS:
                        took = float(ask(started, json.dumps([way, model])))
                        seconds.setdefault((model, gigabits, way), []).append(took)
                        print(model, gigabits, way, took, file=sys.stderr, flush=True)
    milliseconds = {turn: [1e3 * took for took in found] for turn, found in seconds.items()}
    figures = []
    for model in HIDDEN:
        for gigabits in GIGABITS:
            allreduce, *others = ((way, milliseconds[model, gigabits, way]) for way in WAYS)
            for way, mine in others:
                figures.append(Figure(f"a step, {model}, {gigabits:g} Gbit/s, {way}", "ms", mine, "", *allreduce))
        _draw(model, {way: [milliseconds[model, gigabits, way] for gigabits in GIGABITS] for way in WAYS})
    return figures


def _draw(model: str, found: Mapping[str, list[list[float]]]) -> None:
    """Draw steps on each network: milliseconds by way, network and round."""
    lines = [Line(way, list(zip(*rounds, strict=True))) for way, rounds in found.items()]
    title = f"{model.capitalize()} model: a step on four ranks, mean and range of some rounds"
    names = [f"{gigabits:g} Gbit/s" for gigabits in GIGABITS]
    drawn = draw(title, "each host's network", "milliseconds", lines, _ticks(lines), names)
    (IMAGES / f"parameter_servers_{model}.svg").write_text(drawn)


def _ticks(lines: list[Line]) -> list[float]:
    values = [value for line in lines for run in line.runs for value in run]
    ticks = [0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000]
    low = max((tick for tick in ticks if tick <= min(values)), default=ticks[0])
    return [tick for tick in ticks if low <= tick <= max(values) * 2.5]


if __name__ == "__main__":
    _rank()
