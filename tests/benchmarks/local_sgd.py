"""SparkNet's speed-up, N C / ((τ C + S) M), over the number of workers K and the steps τ between two averages.

Moritz et al. 2015, section 3. N: steps of one worker until a perceptron classifies 97 % of the validation digits as
they are. M: rounds of τ steps that K workers take to get there, who are virtual (see `virtual_workers`), as there are
fewer cores. C: seconds of a step, by itself. S: of an average of K real ranks, each on a host of its own (see
`slow_network`), who compute nothing meanwhile. `python -m tests.benchmarks.local_sgd` is one of these ranks; each line
that it reads is an average.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import hpsearch_comm as comm
from hpsearch_trainers.strategies.averaging import average_tensors
from tests.benchmarks.figures import Figure
from tests.benchmarks.plot import Line, draw
from tests.benchmarks.slow_network import SlowNetwork, ask, ranks
from tests.benchmarks.virtual_workers import VirtualWorkers

PLOT = Path(__file__).parents[2] / "docs" / "images" / "local_sgd.svg"
WORKERS, PERIODS = (2, 4, 8), (1, 2, 5, 10, 20, 50)
WIDTHS, BATCH, LR, MOMENTUM = [64, 128, 10], 4, 0.02, 0.9
GOAL, MOST = 0.97, 3000
"""Accuracy to reach, and steps after which a run counts as one that doesn't."""
TIMES = 20
GIGABITS = (10.0, 1.0, 0.1)
TICKS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


def _rank() -> None:
    torch.set_num_threads(1)
    with comm.init() as group:
        for _ in sys.stdin:
            took = _averaged(group)
            if group.rank == 0:
                print(took, flush=True)


def _averaged(group: comm.Group) -> float:
    """Return the seconds that it takes to average the model's weights."""
    weights = list(_model().parameters())
    common = [weight.detach().clone() for weight in weights]
    took = []
    for _ in range(TIMES):
        group.barrier()
        began = time.perf_counter()
        average_tensors(weights, [1 / group.size] * len(weights), group, common)
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def _stepped() -> float:
    """Return the seconds of a step."""
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    inputs, classes = torch.randn(BATCH, WIDTHS[0]), torch.randint(10, (BATCH,))
    took = []
    for _ in range(10 * TIMES):
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), classes)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def _model() -> nn.Module:
    inputs, hidden, classes = WIDTHS
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def _steps(count: int, period: int, seed: int) -> int:
    """Return the steps of each worker until the goal is reached, which is checked after each averaging."""
    workers = VirtualWorkers(count, WIDTHS, batch=BATCH, lr=LR, momentum=MOMENTUM, seed=seed)
    for done in range(1, MOST + 1):
        workers.step()
        if done % period == 0:
            workers.average()
            if workers.accuracy() >= GOAL:
                return done
    return MOST


def measure(rounds: int) -> list[Figure]:
    """Count steps with as many seeds as there are rounds, time averages as often, and draw the speed-up."""
    torch.set_num_threads(1)
    alone = [_steps(1, 1, seed) for seed in range(1, rounds + 1)]
    print("alone", alone, file=sys.stderr, flush=True)
    steps: dict[tuple[int, int], list[int]] = {}
    for count in WORKERS:
        for period in PERIODS:
            steps[count, period] = [_steps(count, period, seed) for seed in range(1, rounds + 1)]
            print(count, period, steps[count, period], file=sys.stderr, flush=True)
    step = statistics.median(_stepped() for _ in range(rounds))
    averages = _averages(rounds)
    figures = [Figure("N: steps of one worker", "", alone, ""), Figure("C: a step", "ms", [1e3 * step], "")]
    for (gigabits, count), took in averages.items():
        figures.append(Figure(f"S: an average of {count}, {gigabits:g} Gbit/s", "ms", [1e3 * one for one in took], ""))
    costs = {network: statistics.median(took) / step for network, took in averages.items()}
    for network in (None, *GIGABITS):
        name = "S = 0" if network is None else f"{network:g} Gbit/s"
        for count in WORKERS:
            of_average = 0.0 if network is None else costs[network, count]
            for period in PERIODS:
                pairs = zip(alone, steps[count, period], strict=True)
                gained = [_speed_up(one, many, period, of_average) for one, many in pairs]
                figures.append(Figure(f"K = {count}, τ = {period}: speed-up, {name}", "", gained, ""))
    most = WORKERS[-1]
    of_most = {period: steps[most, period] for period in PERIODS}
    PLOT.write_text(_drawn(alone, of_most, {gigabits: costs[gigabits, most] for gigabits in GIGABITS}))
    return figures


def _averages(rounds: int) -> Mapping[tuple[float, int], Sequence[float]]:
    """Return the seconds of averages, by the network and the number of workers."""
    found: dict[tuple[float, int], list[float]] = {}
    with SlowNetwork(WORKERS[-1]) as network:
        for count in WORKERS:
            with ranks(network, __name__, count) as started:
                for _ in range(rounds):
                    for gigabits in GIGABITS:
                        network.limit(gigabits)
                        found.setdefault((gigabits, count), []).append(float(ask(started, "")))
    return found


def _drawn(alone: Sequence[int], steps: Mapping[int, Sequence[int]], costs: Mapping[float, float]) -> str:
    """Draw the speed-up of the most workers.

    Args:
        alone: Steps of one, by seed.
        steps: Those of each of many, by period and seed.
        costs: Of an average, in steps, by network.
    """
    names = {"averages take no time": 0.0}
    names |= {f"{gigabits:g} Gbit/s: {cost:.0f} steps for an average": cost for gigabits, cost in costs.items()}
    lines = [
        Line(
            name,
            [[_speed_up(one, steps[period][run], period, cost) for period in PERIODS] for run, one in enumerate(alone)],
        )
        for name, cost in names.items()
    ]
    values = [value for line in lines for run in line.runs for value in run]
    first = max(number for number, tick in enumerate(TICKS) if tick <= min(values))
    title = f"{WORKERS[-1]} workers: speed-up over one, mean and range over {len(alone)} seeds"
    across = [str(period) for period in PERIODS]
    return draw(title, "steps between two averages", "times as fast", lines, TICKS[first:], across)


def _speed_up(alone: int, steps: int, period: int, cost: float) -> float:
    """Return the speed-up if an average takes as long as `cost` steps."""
    return alone / ((period + cost) * (steps / period))


if __name__ == "__main__":
    _rank()
