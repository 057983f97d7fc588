"""How much sooner a bracket ends whose free workers widen its trials, on a virtual clock; and beside ASHA."""

from __future__ import annotations

import argparse
import random
from functools import partial

from hpsearch.run.simulate import simulate
from hpsearch.schedulers.halving import SuccessiveHalving
from hpsearch.simulation.simulation import relative_time
from hpsearch.space import Space, Uniform
from hpsearch.sweep.parts import Metric, Resources
from hpsearch.sweep.sweep import Sweep
from hpsearch.trial import Segment, Trial
from tests.benchmarks.asha import asha_makespan
from tests.benchmarks.figures import Figure
from tests.hpsearch.support.functions import simulated_backend

ETA = 3
EFFICIENCIES = (1.0, 0.9, 0.8, 0.7)
EFFICIENCY = 0.9
SIZES = ((27, 27, "ratio at most 1/6"), (81, 81, "ratio at most 1/13"), (27, 2, ""))
"""(R and trials, workers, target)."""


def measure(rounds: int) -> list[Figure]:
    """Run brackets elastic and fixed, at 0.9 for each doubling of the width, and ASHA, once for each round."""
    figures = []
    for size, workers, target in SIZES:
        wide = [bracket(size, workers, EFFICIENCY, True, seed) for seed in range(rounds)]
        fixed = [bracket(size, workers, EFFICIENCY, False, seed) for seed in range(rounds)]
        beside = [asha(size, workers, seed) for seed in range(rounds)]
        name = f"elastic bracket of {size}, {workers} workers"
        figures.append(Figure(name, "iterations", wide, target, "at fixed width", fixed))
        figures.append(Figure(name, "iterations", wide, "", "ASHA to its first trial at R", beside))
    return figures


def bracket(size: int, workers: int, efficiency: float, elastic: bool, seed: int = 0) -> float:
    """Return the makespan of one bracket of successive halving, in iterations on one worker.

    Args:
        size: Trials that start, and the iterations of the one that is left.
        workers: On which they run.
        efficiency: What each doubling of a trial's workers is worth.
        elastic: Whether trials may be widened, to all of the workers.
        seed: Of the values, which decide who is promoted.
    """
    sweep = Sweep(
        name="elastic",
        trainable="hpsearch_trainers.noop:train",
        metric=Metric("value", "minimize"),
        method="random",
        parameters=Space.from_parameters({"x": Uniform(0.0, 1.0)}),
        early_terminate=SuccessiveHalving(max_iter=size, min_iter=1, eta=ETA, trials=size),
        resources=Resources(max_workers_per_trial=workers, elastic=elastic),
        seed=seed,
    )
    backend = simulated_backend(workers, _metric, partial(_seconds, efficiency))
    simulate(sweep, backend)
    return backend.now()


def asha(size: int, workers: int, seed: int = 0) -> float:
    """Return the time until ASHA's first trial has run `size` iterations, in iterations on one worker."""
    return asha_makespan(workers, size, ETA, lambda trial: random.Random(f"{seed} {trial}").random())


def _metric(trial: Trial, iteration: int) -> float:
    x = trial.params["x"]
    assert isinstance(x, float)
    return x + 1.0 / iteration


def _seconds(efficiency: float, trial: Trial, segment: Segment) -> float:
    assert segment.end is not None
    return (segment.end - segment.start) * relative_time(segment.width, efficiency)


def _main() -> None:
    """Print makespans for several efficiencies, as a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("efficiency", nargs="*", type=float, help="of each doubling, e.g. as measured")
    efficiencies = parser.parse_args().efficiency or EFFICIENCIES
    print(
        "| bracket | workers | fixed | ASHA | " + " | ".join(f"elastic at {value:g}" for value in efficiencies) + " |"
    )
    print("| --- " * (4 + len(efficiencies)) + "|")
    for size, workers, _ in SIZES:
        fixed = bracket(size, workers, EFFICIENCY, elastic=False)
        cells = []
        for value in efficiencies:
            wide = bracket(size, workers, value, elastic=True)
            cells.append(f"{wide:.1f} ({fixed / wide:.1f} x)")
        print(f"| {size} | {workers} | {fixed:.0f} | {asha(size, workers):.0f} | {' | '.join(cells)} |")


if __name__ == "__main__":
    _main()
