"""What a search adds to training: against the training alone, and against Ray Tune's HyperBand."""

from __future__ import annotations

from ray import tune

import hpsearch
from hpsearch.sweep.parts import Resources
from hpsearch.sweep.sweep import Sweep
from tests.benchmarks.bare_compute import bare_seconds
from tests.benchmarks.figures import Figure
from tests.benchmarks.ray_tune import tune_hyperband
from tests.benchmarks.sweeps import WORKERS, free_workers, local_ray, run_sweep

MAX_ITER = 27
ETA = 3
HIDDEN = 128
BATCH_SIZE = 32
"""Fixed, so that an iteration costs the same in every trial."""


def measure(rounds: int) -> list[Figure]:
    """Run ours, the bare training and Tune in turns."""
    per_iteration: list[float] = []
    total: list[float] = []
    bare: list[float] = []
    tune_per_iteration: list[float] = []
    tune_total: list[float] = []
    with local_ray():
        for turn in range(rounds):
            cold, warm = run_sweep(_sweep(turn)), run_sweep(_sweep(turn))
            free_workers()
            total.append(cold.wall)
            per_iteration.append(1e3 * warm.seconds / warm.iterations)
            bare.append(1e3 * bare_seconds(warm.trials, WORKERS) / warm.iterations)
            space = {"lr": tune.loguniform(1e-3, 1.0), "dropout": tune.uniform(0.0, 0.5)}
            theirs = tune_hyperband(
                {**space, "hidden": HIDDEN, "batch_size": BATCH_SIZE}, len(warm.trials), MAX_ITER, ETA, WORKERS
            )
            tune_per_iteration.append(1e3 * (theirs.last_result - theirs.first_start) / theirs.iterations)
            tune_total.append(theirs.wall)
    name = f"digits MLP, Hyperband R={MAX_ITER}"
    unit = "ms/iteration"
    rival = "Ray Tune HyperBand, reused actors"
    return [
        Figure(name, unit, per_iteration, "ratio at most 1.3", "two plain processes", bare),
        Figure(name, unit, per_iteration, "ratio below 1", rival, tune_per_iteration),
        Figure(f"{name}, workers' start included", "s", total, "ratio below 1", rival, tune_total),
    ]


def _sweep(seed: int) -> Sweep:
    return Sweep(
        name="digits",
        trainable="hpsearch_trainers.digits:mlp",
        metric=hpsearch.Metric("accuracy", "maximize"),
        method="random",
        parameters=hpsearch.Space.from_parameters(
            {
                "lr": hpsearch.LogUniform(1e-3, 1.0),
                "dropout": hpsearch.Uniform(0.0, 0.5),
                "hidden": HIDDEN,
                "batch_size": BATCH_SIZE,
            }
        ),
        early_terminate=hpsearch.Hyperband(max_iter=MAX_ITER, eta=ETA),
        resources=Resources(workers=WORKERS),
        seed=seed,
    )
