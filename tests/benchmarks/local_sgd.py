"""SparkNet's speed-up, N C / ((τ C + S) M), over the number of workers K and the steps τ between two averages.

Moritz et al. 2015, section 3. N: steps of one worker until a perceptron classifies 97 % of the validation digits as
they are. M: rounds of τ steps that K workers take to get there, who are virtual (see `virtual_workers`), as there are
fewer cores. C: seconds of a step, and S: of an average, of real ranks over TCP, who compute nothing meanwhile. The plot
has the speed-up of the most workers for some S / C.
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

from hpsearch_comm import Group
from hpsearch_trainers.strategies.averaging import average_tensors
from tests.benchmarks.figures import Figure
from tests.benchmarks.plot import Line, draw
from tests.benchmarks.virtual_workers import VirtualWorkers
from tests.comm.process_ranks import ProcessRanks

__all__ = ["averaged", "measure"]

PLOT = Path(__file__).parents[2] / "docs" / "images" / "local_sgd.svg"
WORKERS, PERIODS = (2, 4, 8), (1, 2, 5, 10, 20, 50)
WIDTHS, BATCH, LR, MOMENTUM = [64, 128, 10], 4, 0.02, 0.9
GOAL, MOST = 0.97, 3000
"""Accuracy to reach, and steps after which a run counts as one that doesn't."""
TIMES = 20
COSTS = (0.0, 10.0, 100.0)
"""Of an average, in steps: S / C."""
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)


def averaged(group: Group) -> float:
    """Give the seconds of an average of the model's weights; called on a rank."""
    torch.set_num_threads(1)
    weights = list(_model().parameters())
    common = [weight.detach().clone() for weight in weights]
    took = []
    for _ in range(TIMES):
        group.barrier()
        began = time.perf_counter()
        average_tensors(weights, [1 / group.size] * len(weights), group, common)
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def stepped(group: Group) -> float:
    """Give the seconds of a step; called on one rank."""
    torch.set_num_threads(1)
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
    """Give the steps of each worker until the goal, which is looked at where they have their mean."""
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
    with ProcessRanks("tests.benchmarks.local_sgd") as ranks:
        computing = statistics.median(ranks.call(1, "stepped")[0].result for _ in range(rounds))
        averaging = {
            count: statistics.median(
                ranks.call(count, "averaged", hosts=[f"host {rank}" for rank in range(count)])[0].result
                for _ in range(rounds)
            )
            for count in WORKERS
        }
    figures = [Figure("N: steps of one worker", "", alone, ""), Figure("C: a step", "ms", [1e3 * computing], "")]
    figures += [Figure(f"S: an average of {count}", "ms", [1e3 * averaging[count]], "") for count in WORKERS]
    for count in WORKERS:
        for period in PERIODS:
            at_best = [_speed_up(one, many, period, 0.0) for one, many in zip(alone, steps[count, period], strict=True)]
            figures.append(Figure(f"K = {count}, τ = {period}: speed-up for S = 0", "", at_best, ""))
    PLOT.write_text(_drawn(alone, {period: steps[WORKERS[-1], period] for period in PERIODS}))
    return figures


def _drawn(alone: Sequence[int], steps: Mapping[int, Sequence[int]]) -> str:
    lines = [
        Line(
            f"an average takes {cost:g} steps",
            [[_speed_up(one, steps[period][run], period, cost) for period in PERIODS] for run, one in enumerate(alone)],
        )
        for cost in COSTS
    ]
    title = f"{WORKERS[-1]} workers: speed-up over one, mean and range over {len(alone)} seeds"
    names = [str(period) for period in PERIODS]
    return draw(title, "steps between two averages", "times as fast", lines, TICKS, names)


def _speed_up(alone: int, steps: int, period: int, cost: float) -> float:
    """Give it for averages that take as long as `cost` steps."""
    return alone / ((period + cost) * (steps / period))
