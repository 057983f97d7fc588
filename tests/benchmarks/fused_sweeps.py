"""Hyperband whose trials share workers as lanes, against the same training in plain loops: the work and nothing else.

The plain loops train the same trials for the same iterations, the longest first on as many processes as there are
workers, with fused optimizers and validation, one thread, at the priority of our workers, MKL_CBWR unset, after
an epoch that warms up. Ours is timed from the first start to the last end in the journal, with checkpoints and
TensorBoard.
"""

from __future__ import annotations

import os
from multiprocessing.connection import Connection
from typing import Any

import torch

import hpsearch
from hpsearch.backends.ray.local_ray import NICENESS
from hpsearch.sweep.parts import Resources
from hpsearch.sweep.sweep import Sweep
from tests.benchmarks.bare_compute import bare_seconds
from tests.benchmarks.figures import Figure
from tests.benchmarks.plain_loop import PlainLoop
from tests.benchmarks.plain_trial import PlainTrial
from tests.benchmarks.sweeps import WORKERS, free_workers, local_ray, run_sweep

_CASES = {
    "MLP 64, batch 64, R=27": ({"hidden": 64, "batch_size": 64}, 27, "ratio at most 0.48"),
    "MLP 64, batch 64, R=81": ({"hidden": 64, "batch_size": 64}, 81, "ratio at most 0.40"),
    "MLP 128, batch 32, R=27": ({"hidden": 128, "batch_size": 32}, 27, "ratio at most 0.45"),
}
"""By name: what is fixed, so that there is one shape; R; the target."""


def measure(rounds: int) -> list[Figure]:
    """Run ours with lanes, ours without, and the plain loops in turns."""
    figures = []
    with local_ray():
        for name, (fixed, most, target) in _CASES.items():
            fused: list[float] = []
            whole: list[float] = []
            plain: list[float] = []
            for turn in range(rounds):
                run_sweep(_sweep(fixed, most, turn, "auto"))  # both workers are there by its end, and warm
                ours = run_sweep(_sweep(fixed, most, turn, "auto"))
                alone = run_sweep(_sweep(fixed, most, turn, 1))
                free_workers()
                fused.append(1e3 * ours.seconds / ours.iterations)
                whole.append(1e3 * alone.seconds / alone.iterations)
                plain.append(1e3 * bare_seconds(ours.trials, WORKERS, _train) / ours.iterations)
            figures.append(Figure(f"lanes, {name}", "ms/iteration", fused, target, "two plain processes", plain))
            figures.append(Figure(f"one at a time, {name}", "ms/iteration", whole, "", "two plain processes", plain))
    return figures


def _sweep(fixed: dict[str, Any], most: int, seed: int, trials_per_worker: Any) -> Sweep:
    searched = {
        "lr": hpsearch.LogUniform(1e-3, 1.0),
        "momentum": hpsearch.Uniform(0.0, 0.95),
        "dropout": hpsearch.Uniform(0.0, 0.5),
        "weight_decay": hpsearch.LogUniform(1e-6, 1e-2),
    }
    return Sweep(
        name="fused",
        trainable="hpsearch_trainers.digits:MLP",
        metric=hpsearch.Metric("accuracy", "maximize"),
        method="random",
        parameters=hpsearch.Space.from_parameters({**searched, **fixed}),
        early_terminate=hpsearch.Hyperband(max_iter=most, eta=3),
        resources=Resources(workers=WORKERS, trials_per_worker=trials_per_worker),
        seed=seed,
    )


def _train(driver: Connection, trials: Any) -> None:
    from hpsearch_trainers.digits import MLP

    os.environ.pop("MKL_CBWR", None)
    os.nice(NICENESS)
    torch.set_num_threads(1)
    _loop(MLP, trials[0][0]).epoch()
    driver.send("ready")
    driver.recv()
    for params, iterations in trials:
        loop = _loop(MLP, params)
        for _ in range(iterations):
            loop.epoch()
    driver.send("done")


def _loop(kind: Any, params: Any) -> PlainLoop:
    parts = kind(PlainTrial(params)).parts
    for group in parts.optimizer.param_groups:
        group["fused"] = True
    return PlainLoop(parts)
