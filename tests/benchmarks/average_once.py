"""The mean of 1 to 10 models that were trained apart at a constant rate: logistic regression, and a perceptron.

Zinkevich et al. 2010, section 5, on scikit-learn's digits. All models begin alike, take equally many steps, each on its
part of the rows, and only their mean is looked at: its loss on the rows to train on, after as many steps of each as one
alone takes in an epoch, two, three, ... So equal places on the axis took equal time, on enough workers.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from tests.benchmarks.figures import Figure
from tests.benchmarks.plot import Line, draw
from tests.benchmarks.virtual_workers import VirtualWorkers

IMAGES = Path(__file__).parents[2] / "docs" / "images"
MODELS = (1, 2, 5, 10)
TIMES, STEPS = 10, 359
"""Points of a curve, and steps between them: rows of an epoch by those of a batch."""
PROBLEMS = {
    "logistic regression": ([64, 10], 0.5, (0.02, 0.05, 0.1, 0.2, 0.5, 1)),
    "perceptron": ([64, 128, 10], 0.2, (0.0001, 0.001, 0.01, 0.1, 1, 3)),
}
"""By name: units, rate, and marked losses."""


def measure(rounds: int) -> list[Figure]:
    """Train every number of models with as many seeds as there are rounds, and draw both problems."""
    torch.set_num_threads(1)
    figures = []
    for name, (widths, lr, ticks) in PROBLEMS.items():
        curves: dict[int, list[list[float]]] = {count: [] for count in MODELS}
        for seed in range(1, rounds + 1):
            for count in MODELS:
                curves[count].append(_curve(count, widths, lr, seed))
                print(name, count, *(f"{loss:.4g}" for loss in curves[count][-1]), file=sys.stderr, flush=True)
        for count in MODELS:
            for place, when in ((0, "first"), (-1, "last")):
                losses, alone = ([run[place] for run in curves[which]] for which in (count, 1))
                figures.append(Figure(f"{name}, mean of {count}: loss at the {when} time", "", losses, "", "1", alone))
        lines = [Line(f"mean of {count}", runs) for count, runs in curves.items()]
        title = f"{name.capitalize()}, constant rate {lr}: mean and range over {rounds} seeds"
        drawn = draw(title, "time: epochs of one model alone", "loss of the mean of models", lines, ticks)
        (IMAGES / f"average_once_{name.split()[0]}.svg").write_text(drawn)
    return figures


def _curve(count: int, widths: list[int], lr: float, seed: int) -> list[float]:
    workers = VirtualWorkers(count, widths, batch=4, lr=lr, seed=seed)
    losses = []
    for _ in range(TIMES):
        for _ in range(STEPS):
            workers.step()
        losses.append(workers.loss())
    return losses
