"""Optuna's own loop over a suite's tables, on a virtual clock: one study, one sampler, `ask` and `tell`; never for CI.

.venv/bin/python -m tests.benchmarks.peers.optuna_methods SUITE.yaml OUT.csv --data FOLDER

Each trial is trained to its end, and told when it ends. Samplers have their defaults. Suggestions cost no time.

`auto_rule` isn't OptunaHub's AutoSampler, which is fetched when it runs, but the choice among Optuna's samplers that
its package (samplers/auto_sampler, read in 2026) makes for one metric.
"""

from __future__ import annotations

import heapq
import math
import warnings
from collections.abc import Callable

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, QMCSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import TrialState

from hpsearch.benchmark.runs import BenchmarkTask, RunCourse, RunKey
from hpsearch.benchmark.suite import Suite
from hpsearch.searchers.optuna_space import OptunaSpace
from hpsearch.seeds import trial_seed
from hpsearch.trial import Trial
from tests.benchmarks.peers.output import course_of, write_peer

SAMPLERS: dict[str, Callable[[int], BaseSampler]] = {
    "random": lambda seed: RandomSampler(seed=seed),
    "qmc": lambda seed: QMCSampler(seed=seed, warn_independent_sampling=False),
    "tpe": lambda seed: TPESampler(seed=seed),
    "cmaes": lambda seed: CmaEsSampler(seed=seed),
    "gp": lambda seed: GPSampler(seed=seed),
    "auto_rule": lambda seed: RandomSampler(seed=seed),
}
"""Method to the sampler with which its study begins."""

_GP_TRIALS = 250
"""Complete trials after which `auto_rule` changes from the Gaussian process to CMA-ES, which begins with them."""


def follow_auto_rule(study: Study, seed: int, has_choices: bool) -> None:
    """Set the sampler that AutoSampler would take for the next trial of a study with one metric."""
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if not complete:
        return
    if has_choices:
        if not isinstance(study.sampler, TPESampler):
            study.sampler = TPESampler(
                seed=seed, multivariate=True, constant_liar=True, warn_independent_sampling=False
            )
    elif len(complete) < _GP_TRIALS:
        if not isinstance(study.sampler, GPSampler):
            study.sampler = GPSampler(seed=seed)
    elif not isinstance(study.sampler, CmaEsSampler):
        study.sampler = CmaEsSampler(seed=seed, source_trials=complete[:_GP_TRIALS])


def run(suite: Suite, task: BenchmarkTask, key: RunKey) -> RunCourse:
    """Carry out one run."""
    study = optuna.create_study(sampler=SAMPLERS[key.method](key.seed))
    space = OptunaSpace(suite.template.parameters)
    has_choices = any(isinstance(each, CategoricalDistribution) for each in space.distributions.values())
    recorded, (metric,) = task.table.recorded, suite.template.objective.goals
    sign = 1.0 if metric.goal == "minimize" else -1.0
    until = suite.budgets[-1] * task.mean_seconds / key.workers
    due: list[tuple[float, int, int, int]] = []  # (when, order, trial, iteration)
    rows: dict[int, tuple[int, int]] = {}
    course: list[tuple[float, float]] = []
    order, best = 0, math.inf

    def start(clock: float) -> None:
        nonlocal order
        if key.method == "auto_rule":
            follow_auto_rule(study, key.seed, has_choices)
        trial = study.ask(space.distributions)
        params = space.build(lambda name, _: trial.params[name])
        row, repetition = task.table.find(Trial(trial.number, params, trial_seed(key.seed, trial.number), "peer"))
        rows[trial.number] = row, repetition
        for iteration in range(min(suite.max_iter, task.table.lengths[row, repetition])):
            clock += float(recorded.seconds[row, repetition, iteration])
            order += 1
            heapq.heappush(due, (clock, order, trial.number, iteration))

    for _ in range(key.workers):
        start(0.0)
    while due:
        clock, _, number, iteration = heapq.heappop(due)
        if clock > until:
            break
        row, repetition = rows[number]
        value = sign * float(recorded.metrics[metric.name][row, repetition, iteration])
        if value < best:
            best = value
            course.append((clock * key.workers / task.mean_seconds, float(task.judged[row, iteration])))
        if iteration == min(suite.max_iter, task.table.lengths[row, repetition]) - 1:
            study.tell(number, value)
            start(clock)
    return course_of(task, course, len(rows))


if __name__ == "__main__":
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    write_peer(__doc__, "optuna", ",".join(SAMPLERS), 5, run)
