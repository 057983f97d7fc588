"""Failures among the suggestions of methods that learn, where a region of the space runs out of memory.

The loss is best at the edge of what memory allows, so that a method that learns only from the loss keeps trying beyond
it: memory grows with width times batch, and so does what is learned per epoch. `python -m tests.benchmarks.failures`
prints the table of tests/benchmarks/results/methods.md; it takes some minutes.
"""

from __future__ import annotations

import math
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import hpsearch
from hpsearch.searchers import Search

METHODS = ("random", "tpe", "bohb", "gp", "cmaes", "evolution", "spectral")
TRIALS = 100
PARTS = ((0, 25), (25, 50), (50, 100))
SPACE = {
    "lr": hpsearch.LogUniform(1e-4, 1.0),
    "width": hpsearch.LogIntUniform(16, 4096),
    "batch": hpsearch.LogIntUniform(8, 1024),
    "momentum": hpsearch.Uniform(0.0, 0.99),
    "dropout": hpsearch.Uniform(0.0, 0.8),
    "weight_decay": hpsearch.LogUniform(1e-6, 1e-1),
}
MEMORY = 2.0**16
"""Largest width times batch: 39 % of the random configurations need more."""


class Memory(hpsearch.Curves):
    """A smooth loss of nine epochs, of which a trial beyond the memory reports none."""

    def curve(self, params: dict[str, Any], seed: int) -> hpsearch.Curve:
        if params["width"] * params["batch"] > MEMORY:
            return hpsearch.Curve({"loss": []}, failure="OutOfMemoryError: CUDA out of memory")
        loss = (
            abs(math.log10(params["lr"]) + 1.5) / 2
            + 2 * math.log2(MEMORY / (params["width"] * params["batch"])) / 16
            + abs(math.log2(params["width"]) - 9) / 8
            + (params["momentum"] - 0.9) ** 2
            + (params["dropout"] - 0.2) ** 2
            + abs(math.log10(params["weight_decay"]) + 4) / 10
        )
        return hpsearch.Curve({"loss": [loss + 1 / epoch for epoch in range(1, 10)]})


def run(method: str, avoids: bool, seed: int) -> tuple[list[float], float]:
    """Return the share of failed trials in each part of the trials, and the best loss."""
    learns = method != "random"
    study = hpsearch.search(
        Memory,
        parameters=SPACE,
        metric="loss",
        method=method,
        max_iter=9,
        run_cap=TRIALS,
        search=Search(ahead=False, avoid_failures=avoids) if learns else Search(),
        limits={"max_failures": "none"},
        seed=seed,
        backend="simulated",
        directory=":memory:",
        resources={"workers": 1},
        observers=[],
        progress=False,
    )
    failed = [trial.failure is not None for trial in study.trials]
    return [statistics.fmean(failed[first:end]) for first, end in PARTS], float(study.best_value)


def main() -> None:
    """Print a row for each method, with and without what failures teach."""
    seeds = range(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
    print("| method | avoids failures | failed of 1-25 | 26-50 | 51-100 | best loss |\n" + "| --- " * 6 + "|")
    with ProcessPoolExecutor(2) as pool:
        for method in sys.argv[2:] or METHODS:
            for avoids in (False, True) if method != "random" else (False,):
                runs = list(pool.map(run, *zip(*((method, avoids, seed) for seed in seeds), strict=True)))
                rates = [f"{statistics.fmean(part):.0%}" for part in zip(*(rates for rates, _ in runs), strict=True)]
                losses = [best for _, best in runs]
                error = statistics.stdev(losses) / math.sqrt(len(losses))
                best = f"{statistics.fmean(losses):.3f} ± {error:.3f}"
                print(f"| {method} | {'yes' if avoids else 'no'} | {' | '.join(rates)} | {best} |", flush=True)


if __name__ == "__main__":
    main()
