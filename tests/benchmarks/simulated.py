"""What the search itself costs: a large sweep on a virtual clock."""

from __future__ import annotations

import random
import time

import hpsearch
from hpsearch.run.simulate import simulate
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import Segment, Trial
from tests.benchmarks.figures import Figure
from tests.hpsearch.support.functions import simulated_backend

WORKERS = 10_000
TRIALS = 100_000


def measure(rounds: int) -> list[Figure]:
    """Run Hyperband with ten thousand workers, in this process and its one thread."""
    seconds: list[float] = []
    for _ in range(rounds):
        began = time.process_time()
        sweep_state = simulate(_sweep(), simulated_backend(WORKERS, _metric, _seconds, live=False))
        seconds.append(time.process_time() - began)
        if len(sweep_state.rows()) != TRIALS:
            raise RuntimeError(f"the sweep should have made {TRIALS} trials, but made {len(sweep_state.rows())}")
    return [
        Figure(f"simulated Hyperband, {WORKERS:,} workers, {TRIALS:,} trials", "s", seconds, "at most 60"),
    ]


def _sweep() -> Sweep:
    return Sweep(
        name="simulated",
        trainable="hpsearch_trainers.noop:train",
        metric=hpsearch.Metric("value", "minimize"),
        method="random",
        parameters=hpsearch.Space.from_parameters({"x": hpsearch.Uniform(0.0, 1.0)}),
        early_terminate=hpsearch.Hyperband(max_iter=81, eta=3),
        run_cap=TRIALS,
    )


def _metric(trial: Trial, iteration: int) -> float:
    x = trial.params["x"]
    assert isinstance(x, float)
    return x + 1.0 / iteration


def _seconds(trial: Trial, segment: Segment) -> float:
    """Iterations of some trials take up to twice as long as others', so that segments end one by one."""
    return float((segment.end or 1) - segment.start) * (1.0 + random.Random(trial.seed).random())
