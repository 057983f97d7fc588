"""Families: suites of different kinds of tasks. Methods are compared in each family, and by mean rank over all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

import numpy as np

from hpsearch.benchmark.report import Row, hits_at, over_tasks
from hpsearch.benchmark.runs import Results, RunCourse, RunKey
from hpsearch.benchmark.suite import Suite

Half = Literal["choose", "report"]

FEWEST_TASKS = 6
"""Families with fewer tasks (in both halves together) are reported, but don't count in the ranks."""

_RESAMPLES = 2000


@dataclass(frozen=True)
class Family:
    """A suite of tasks of one kind, and its results."""

    suite: Suite
    results: Results
    methods: Sequence[str]
    """The methods that can search the family's space."""
    workers: int
    judged: bool
    """Whether the family counts in the ranks."""

    def hits(self, method: str, budget: float) -> float:
        """Return a method's mean hits over the tasks; NaN without runs."""
        return over_tasks(self.results.of(method, self.workers), hits_at, budget).value


def half_of(suite: Suite, half: Half | None) -> Suite:
    """Return a suite with every second task, so that defaults chosen on one half can be reported on the other."""
    if half is None:
        return suite
    return replace(suite, tasks=suite.tasks[::2] if half == "choose" else suite.tasks[1::2])


def ranks(families: Sequence[Family]) -> dict[str, float]:
    """Return each method's mean rank over the judged families; 1 is the best.

    Methods are ranked by their hits, averaged over the budgets. Methods with equal hits share the mean of their ranks.
    A method that can't run on one of the judged families has no rank.
    """
    by_method: dict[str, list[float]] = defaultdict(list)
    judged = [family for family in families if family.judged]
    everywhere = [
        method
        for method in dict.fromkeys(method for family in judged for method in family.methods)
        if all(method in family.methods for family in judged)
    ]
    for family in judged:
        hits = {method: fmean(family.hits(method, budget) for budget in family.suite.budgets) for method in everywhere}
        for method, value in hits.items():
            better = sum(other > value for other in hits.values())
            equal = sum(other == value for other in hits.values())
            by_method[method].append(better + (equal + 1) / 2)
    return {method: fmean(values) for method, values in by_method.items()}


def interval(
    first: Mapping[RunKey, RunCourse], second: Mapping[RunKey, RunCourse], budget: float, coverage: float = 0.95
) -> tuple[float, float]:
    """Return a bootstrap interval of the difference in hits between two methods, paired by task and seed.

    Tasks are sampled with replacement, then seeds within each sampled task (Davison & Hinkley, 1997, section 3.8).

    Args:
        first: Runs of the method.
        second: Runs of the other method.
        budget: Budget in full trainings.
        coverage: Probability that the interval covers.
    """
    differences: dict[str, list[float]] = defaultdict(list)
    theirs = {(key.task, key.seed): course for key, course in second.items()}
    for key, course in sorted(first.items()):
        if (key.task, key.seed) in theirs:
            other = theirs[key.task, key.seed]
            differences[key.task].append(hits_at(course, budget) - hits_at(other, budget))
    if not differences:
        return float("nan"), float("nan")
    rng = np.random.default_rng(0)
    count = len(differences)
    means = np.stack(
        [
            np.asarray(values)[rng.integers(len(values), size=(_RESAMPLES, count, len(values)))].mean(axis=2)
            for values in differences.values()
        ]
    )  # [task, resample, index among the sampled tasks]
    sampled = rng.integers(count, size=(_RESAMPLES, count))
    totals = means[sampled, np.arange(_RESAMPLES)[:, None], np.arange(count)].mean(axis=1)
    low, high = np.quantile(totals, [(1 - coverage) / 2, (1 + coverage) / 2])
    return float(low), float(high)


def family_rows(families: Sequence[Family]) -> Iterator[Row]:
    """Yield the table of families: mean hits, paired differences from the first method, and mean ranks.

    Methods are sorted by mean rank.
    """
    names = [f"{family.suite.name} ({len(family.suite.tasks)})" + ("" if family.judged else "*") for family in families]
    yield ("method", *(cell for name in names for cell in (name, "difference")), "mean rank")
    by_rank = ranks(families)
    methods = list(dict.fromkeys(method for family in families for method in family.methods))
    for method in sorted(methods, key=lambda method: by_rank.get(method, float("inf"))):
        cells = []
        for family in families:
            runs = family.results.of(method, family.workers)
            base = family.results.of(family.methods[0], family.workers)
            cells.append("/".join(f"{family.hits(method, each):.2f}" for each in family.suite.budgets) if runs else "")
            middle = family.suite.budgets[len(family.suite.budgets) // 2]
            is_compared = runs and base and method != family.methods[0]
            cells.append("{:+.2f} to {:+.2f}".format(*interval(runs, base, middle)) if is_compared else "")
        yield (method, *cells, f"{by_rank[method]:.1f}" if method in by_rank else "")
