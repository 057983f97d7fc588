"""What a trial costs when it does nothing: against Ray Tune, and against Ray's actors alone."""

from __future__ import annotations

from tests.benchmarks.actor_pool import pool_rate
from tests.benchmarks.figures import Figure
from tests.benchmarks.ray_tune import tune_noop
from tests.benchmarks.sweeps import WORKERS, free_workers, local_ray, run_noop

TRIALS = 1000
"""For ours, for the pool and for Tune alike: Tune's cost per trial grows with their number."""


def measure(rounds: int) -> list[Figure]:
    """Run ours, the pool and Tune in turns."""
    rate: list[float] = []
    whole: list[float] = []
    cold: list[float] = []
    pool: list[float] = []
    tune: list[float] = []
    tune_cold: list[float] = []
    with local_ray():
        for _ in range(rounds):
            cold.append(run_noop(TRIALS).wall)  # starts the workers
            ours = run_noop(TRIALS)
            free_workers()
            rate.append(ours.rate())
            whole.append(TRIALS / ours.wall)
            pool.append(pool_rate(TRIALS))
            theirs = tune_noop(TRIALS, WORKERS)
            tune.append(theirs.rate())
            tune_cold.append(theirs.wall)
    name = f"no-op trials, {WORKERS} workers"
    rival = "Ray Tune, reused actors"
    bare = "two bare Ray actors"
    return [
        Figure(name, "trials/s", rate, "ratio at least 20", rival, tune),
        Figure(name, "trials/s", rate, "ratio at least 0.4", bare, pool),
        Figure(f"{name}, from call to return", "trials/s", whole, "", bare, pool),
        Figure(f"{TRIALS} no-op trials, workers' start included", "s", cold, "", rival, tune_cold),
    ]
