"""Optuna's own loop over a suite's tables, on a virtual clock: one study, one sampler, `ask` and `tell`; never for CI.

.venv/bin/python -m tests.benchmarks.peers.optuna_methods SUITE.yaml OUT.jsonl --data FOLDER

Each trial is trained to its end, and told when it ends. Samplers have their defaults. Suggestions cost no time.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, QMCSampler, RandomSampler, TPESampler

from hpsearch.benchmark.runs import BenchmarkTask, RunCourse, RunKey, task_of
from hpsearch.benchmark.suite import Suite, load_suite
from hpsearch.space import IntUniform, LogIntUniform, LogUniform, Space
from hpsearch.trial import Trial

SAMPLERS: dict[str, Callable[[int], BaseSampler]] = {
    "random": lambda seed: RandomSampler(seed=seed),
    "qmc": lambda seed: QMCSampler(seed=seed, warn_independent_sampling=False),
    "tpe": lambda seed: TPESampler(seed=seed),
    "cmaes": lambda seed: CmaEsSampler(seed=seed),
    "gp": lambda seed: GPSampler(seed=seed),
}


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Return the space as Optuna's distributions."""
    found: dict[str, BaseDistribution] = {}
    for parameter in space.parameters:
        ours: Any = parameter.distribution
        kind = IntDistribution if isinstance(ours, IntUniform | LogIntUniform) else FloatDistribution
        found[parameter.name] = kind(ours.min, ours.max, log=isinstance(ours, LogUniform | LogIntUniform))
    return found


def run(
    task: BenchmarkTask, space: Space, sampler: BaseSampler, longest: int, workers: int, budget: float
) -> tuple[Any, int]:
    """Return (full-training equivalents, judged value) of each report that is the best so far, and the trials."""
    study = optuna.create_study(sampler=sampler)
    fixed = distributions(space)
    until = budget * task.mean_seconds / workers
    due: list[tuple[float, int, int, int]] = []  # (when, order, trial, epoch)
    rows: dict[int, int] = {}
    course: list[tuple[float, float]] = []
    order, best = 0, float("inf")

    def start(clock: float) -> None:
        nonlocal order
        trial = study.ask(fixed)
        rows[trial.number], _ = task.table.find(Trial(trial.number, trial.params, 0, "peer"))
        seconds = task.table.recorded.seconds[rows[trial.number], 0]
        for epoch in range(longest):
            clock += float(seconds[epoch])
            order += 1
            heapq.heappush(due, (clock, order, trial.number, epoch))

    for _ in range(workers):
        start(0.0)
    while due:
        clock, _, number, epoch = heapq.heappop(due)
        if clock > until:
            break
        value = float(task.judged[rows[number], epoch])
        if value < best:
            best = value
            course.append((clock * workers / task.mean_seconds, value))
        if epoch == longest - 1:
            study.tell(number, value)
            start(clock)
    return course, len(rows)


def courses(suite: Suite, names: list[str], seeds: int, workers: int) -> Iterator[tuple[RunKey, RunCourse]]:
    """Run everything."""
    space = suite.template.parameters
    for name in suite.tasks:
        task = task_of(suite, name)
        for method in names:
            for seed in range(seeds):
                found, trials = run(task, space, SAMPLERS[method](seed), suite.max_iter, workers, suite.budgets[-1])
                course = RunCourse(
                    [at for at, _ in found],
                    [task.regret(value) for _, value in found],
                    [value <= task.threshold for _, value in found],
                    trials,
                )
                yield RunKey(name, method, workers, seed), course


def main() -> None:
    """Write a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--methods", default="random,qmc,tpe,cmaes,gp")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--workers", type=int, default=4)
    given = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    suite = load_suite(given.suite, given.data)
    with given.out.open("w", encoding="utf-8") as file:
        for key, course in courses(suite, given.methods.split(","), given.seeds, given.workers):
            file.write(json.dumps({**key._asdict(), **asdict(course)}) + "\n")
            file.flush()
            print(*key, course.trials, file=sys.stderr)


if __name__ == "__main__":
    main()
