"""Rungs by several goals beside full trainings, at the same number of iterations."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hpsearch
from hpsearch.objective import hypervolume
from tests.benchmarks.figures import Figure

FULL = (10, 25)
"""Budgets, in full trainings."""
SEEDS = 1
"""For each round and table."""
FILE = "lcbench_curves_17x1000x50.npz"

GOALS = (hpsearch.Metric("error", "minimize"), hpsearch.Metric("seconds", "minimize"))
METHODS = ("random", "hyperband", "asha", "asha by the error alone")


@dataclass(frozen=True, slots=True)
class Table:
    """Trainings of which two things count: the error, which falls, and the seconds of an epoch, known at once."""

    name: str
    errors: NDArray[np.float64]
    """By training and epoch."""
    seconds: NDArray[np.float64]
    """By training."""

    @property
    def reference(self) -> tuple[float, float]:
        """The median error at the end, and the most seconds."""
        return float(np.median(self.errors[:, -1])), float(self.seconds.max())

    def share(self, points: Sequence[tuple[float, float]]) -> float:
        """Return a hypervolume as a share of that of all trials at the end of their training."""
        best = list(zip(self.errors[:, -1].tolist(), self.seconds.tolist(), strict=True))
        return hypervolume(points, self.reference) / hypervolume(best, self.reference)


def measure(rounds: int) -> list[Figure]:
    """Measure on tables of random curves, and on recorded ones where there are any."""
    kinds = {"synthetic curves": [synthetic(seed) for seed in range(4)]}
    folder = os.environ.get("HPSEARCH_BENCHMARK_DATA")
    if folder is not None:
        kinds["LCBench"] = recorded(Path(folder))
    figures = []
    for kind, tables in kinds.items():
        for full in FULL:
            found = {method: [_mean(table, method, full, SEEDS * rounds) for table in tables] for method in METHODS}
            for method, values in found.items():
                error = stdev(values) / math.sqrt(len(values))
                told = f"| {kind} | {full} | {method} | {fmean(values):.3f} ± {error:.3f} |"
                print(told, file=sys.stderr, flush=True)
            for method in METHODS[1:]:
                text = f"{kind}, {full} full trainings: {method}: hypervolume"
                own, peer = fmean(found[method]), fmean(found["random"])
                figures.append(Figure(text, "share", [own], "", "random, all at full length", [peer]))
    return figures


def _mean(table: Table, method: str, full: int, seeds: int) -> float:
    return fmean(reached(table, method, full, seed) for seed in range(seeds))


def reached(table: Table, method: str, full: int, seed: int) -> float:
    """Search within the iterations of so many full trainings; return the share by what the trials reported last."""
    longest = table.errors.shape[1]
    early: Mapping[str, hpsearch.EarlyTerminate] = {
        "hyperband": hpsearch.Hyperband(max_iter=longest),
        "asha": hpsearch.ASHA(max_iter=longest),
        "asha by the error alone": hpsearch.ASHA(max_iter=longest),
    }
    study = hpsearch.search(
        _Rows(table),
        parameters={"row": hpsearch.IntUniform(0, len(table.errors) - 1)},
        metric=GOALS[0] if method == "asha by the error alone" else list(GOALS),
        early_terminate=early.get(method),
        max_iter=longest if method == "random" else None,
        run_cap=100_000,
        limits={"max_time": float(longest * full)},
        resources={"workers": 1},
        seed=seed,
        backend="simulated",
        directory=":memory:",
        progress=False,
    )
    at = [(int(row.params["row"]), row.iterations) for row in study.trials if row.iterations]
    return table.share([(float(table.errors[row, last - 1]), float(table.seconds[row])) for row, last in at])


class _Rows(hpsearch.Curves):
    """Each iteration takes a second, whatever the training says: budgets are iterations."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def curve(self, params: dict[str, Any], seed: int) -> hpsearch.Curve:
        errors = self.table.errors[params["row"]]
        return hpsearch.Curve({"error": errors, "seconds": np.full(len(errors), self.table.seconds[params["row"]])})


def synthetic(seed: int, count: int = 1000, epochs: int = 27) -> Table:
    """Make curves that fall to their ends at rates of their own, with noise; who takes long errs less, if at all."""
    chance = np.random.default_rng(seed)
    size, luck = chance.uniform(0, 1, count), chance.uniform(0, 1, count)
    ends = 10 + 20 * (1 - np.sqrt(size)) + 30 * luck
    rates = chance.uniform(2, 10, (count, 1))
    falling = (90 - ends[:, None]) * np.exp(-np.arange(1, epochs + 1) / rates)
    return Table(f"synthetic {seed}", ends[:, None] + falling + chance.normal(0, 0.5, (count, epochs)), 1 + 9 * size)


def recorded(folder: Path) -> list[Table]:
    """Read LCBench's: the error on the validation set, and the mean seconds of an epoch."""
    with np.load(folder / FILE) as arrays:
        tasks, accuracies, times = arrays["openml_task"], arrays["val_accuracy"], arrays["time_s"]
    return [
        Table(str(task), 100 - accuracies[place].astype(np.float64), times[place][:, -1] / times.shape[2])
        for place, task in enumerate(tasks)
    ]
