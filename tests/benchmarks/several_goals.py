"""Search by several goals: the share of the best front's hypervolume, beside Optuna's samplers; rungs; and costs.

The problems are functions. Recorded curves (LCBench's surrogate) are measured where HPSEARCH_BENCHMARK_DATA names the
folder of their file. Means with their standard errors go to standard error.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import optuna
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler

import hpsearch
from tests.benchmarks import front_costs, goals_in_rungs
from tests.benchmarks.figures import Figure
from tests.benchmarks.goal_problems import PROBLEMS, Outcome, Problem
from tests.benchmarks.plot import Line, draw

PLOT = Path(__file__).parents[2] / "docs" / "images" / "several_goals.svg"
SEEDS = 5
"""For each round."""
TRIALS = (30, 100)
STEP = 10
"""Trials between two looks at a search."""

SAMPLERS: Mapping[str, Callable[[int], BaseSampler]] = {
    "RandomSampler": lambda seed: RandomSampler(seed=seed),
    "TPESampler": lambda seed: TPESampler(seed=seed),
    "NSGAIISampler, 20": lambda seed: NSGAIISampler(population_size=20, seed=seed),
    "NSGAIISampler, 50": lambda seed: NSGAIISampler(seed=seed),
    "GPSampler": lambda seed: GPSampler(seed=seed),
}
BESIDE: Mapping[str, Sequence[str]] = {
    "random": ("RandomSampler",),
    "tpe": ("TPESampler",),
    "nsga2": ("NSGAIISampler, 20", "NSGAIISampler, 50"),
    "evolution": ("NSGAIISampler, 20",),
}
"""Our methods, and what each is measured beside."""
SLOW: Mapping[str, Sequence[str]] = {"gp": ("GPSampler",)}
"""They take a third of a second and more for a suggestion: two seeds, 30 trials, two problems."""
SLOW_PROBLEMS = ("ZDT1", "BNH")

Shares = Mapping[tuple[str, str], Sequence[Sequence[float]]]
"""(problem, method) to what each seed had reached, after each `STEP` trials."""


def measure(rounds: int) -> list[Figure]:
    """Measure with five seeds for each round, and draw the plot."""
    seeds = SEEDS * rounds
    found = compare(PROBLEMS, BESIDE, max(TRIALS), seeds)
    PLOT.parent.mkdir(exist_ok=True)
    PLOT.write_text(_plot(found, seeds))
    few = [problem for problem in PROBLEMS if problem.name in SLOW_PROBLEMS]
    slow = compare(few, SLOW, min(TRIALS), min(seeds, 2))
    figures = [*_figures(found, BESIDE, TRIALS), *_figures(slow, SLOW, TRIALS[:1])]
    return [*figures, *goals_in_rungs.measure(rounds), *front_costs.measure()]


def compare(problems: Sequence[Problem], beside: Mapping[str, Sequence[str]], trials: int, seeds: int) -> Shares:
    """Run our methods and what is beside them on each problem, and say what they reached."""
    samplers = dict.fromkeys(sampler for those in beside.values() for sampler in those)
    found: dict[tuple[str, str], Sequence[Sequence[float]]] = {}
    for problem in problems:
        for method in (*beside, *samplers):
            search = theirs if method in SAMPLERS else ours
            found[problem.name, method] = [
                shares(problem, search(problem, method, trials, seed)) for seed in range(seeds)
            ]
            _tell(problem.name, method, found[problem.name, method])
    return found


def shares(problem: Problem, outcomes: Sequence[Outcome]) -> list[float]:
    """Return the share of the best hypervolume after each `STEP` trials, from those that meet the constraints."""
    return [
        problem.share([one.values for one in outcomes[:count] if all(excess <= 0 for excess in one.excesses)])
        for count in range(STEP, len(outcomes) + 1, STEP)
    ]


def ours(
    problem: Problem, method: str, trials: int, seed: int, options: Mapping[str, Any] | None = None
) -> list[Outcome]:
    """Search by one of our methods, on one worker, each suggestion made with all results."""
    names = [f"goal{place}" for place in range(problem.goals)]
    study = hpsearch.search(
        _Function(problem),
        parameters={
            "parameters": {f"x{place}": hpsearch.Uniform(*ends) for place, ends in enumerate(problem.ranges)},
            "outcome_constraints": [f"excess{place} <= 0" for place in range(problem.constraints)],
        },
        metric=[hpsearch.Metric(name, "minimize") for name in names],
        method=method,
        search={} if method == "random" else {"ahead": False, "options": options},
        run_cap=trials,
        max_iter=1,
        resources={"workers": 1},
        seed=seed,
        backend="simulated",
        directory=":memory:",
        progress=False,
    )
    return [problem.outcome([row.params[f"x{place}"] for place in range(len(problem.ranges))]) for row in study.trials]


class _Function(hpsearch.Curves):
    """A trial is one iteration, which evaluates the problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def curve(self, params: dict[str, Any], seed: int) -> hpsearch.Curve:
        outcome = self.problem.outcome([params[f"x{place}"] for place in range(len(self.problem.ranges))])
        goals = {f"goal{place}": [value] for place, value in enumerate(outcome.values)}
        return hpsearch.Curve(goals | {f"excess{place}": [value] for place, value in enumerate(outcome.excesses)})


def theirs(problem: Problem, sampler: str, trials: int, seed: int) -> list[Outcome]:
    """Search by one of Optuna's samplers, in a study of its own."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    outcomes = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = optuna.create_study(directions=["minimize"] * problem.goals, sampler=SAMPLERS[sampler](seed))
        for _ in range(trials):
            trial = study.ask()
            x = [trial.suggest_float(f"x{place}", *ends) for place, ends in enumerate(problem.ranges)]
            outcomes.append(problem.outcome(x))
            for place, excess in enumerate(outcomes[-1].excesses):
                trial.set_constraint(str(place), excess)
            study.tell(trial, outcomes[-1].values)
    return outcomes


def _figures(found: Shares, beside: Mapping[str, Sequence[str]], trials: Sequence[int]) -> list[Figure]:
    """Return the means over problems and seeds as one sample each: a seed that found nothing has no ratio."""
    problems = dict.fromkeys(problem for problem, _ in found)
    figures = []
    for method, samplers in beside.items():
        for count in trials:
            own, *peers = (
                fmean(run[count // STEP - 1] for problem in problems for run in found[problem, one])
                for one in (method, *samplers)
            )
            text = f"{method}, {count} trials: hypervolume, mean of {len(problems)} problems"
            pairs = zip(samplers, peers, strict=True)
            figures += [Figure(text, "share", [own], "", sampler, [peer]) for sampler, peer in pairs]
    return figures


def _tell(problem: str, method: str, runs: Sequence[Sequence[float]]) -> None:
    """Print the mean over seeds with its standard error, at the numbers of trials that there are."""
    told = []
    for count in TRIALS:
        at = [run[count // STEP - 1] for run in runs if len(run) >= count // STEP]
        if at:
            error = stdev(at) / math.sqrt(len(at)) if len(at) > 1 else math.nan
            told.append(f"{fmean(at):.3f} ± {error:.3f}")
    print(f"| {problem} | {method} | {' | '.join(told)} |", file=sys.stderr, flush=True)


def _plot(found: Shares, seeds: int) -> str:
    """Draw what is still missing, as the mean over the problems, of each seed."""
    problems = dict.fromkeys(problem for problem, _ in found)
    lines = []
    for method in BESIDE:
        runs = [zip(*(found[problem, method][seed] for problem in problems), strict=True) for seed in range(seeds)]
        lines.append(Line(method, [[1 - fmean(reached) for reached in run] for run in runs]))
    title = f"{len(problems)} problems of several goals: mean and range over {seeds} seeds"
    return draw(title, "tens of trials", "missing share of the hypervolume", lines, (0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1))
