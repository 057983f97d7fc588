"""The report of a benchmark: means and bootstrap intervals, a table of hits and regret by budget, plots over time."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from hpsearch.benchmark.rows import RunRow, Values, hits_of, regret_of, runs_of
from hpsearch.benchmark.runs import Results, RunCourse, hits_at, regret_at
from hpsearch.benchmark.suite import Suite
from hpsearch.page.charts.chart import Chart
from hpsearch.page.charts.picture import series
from hpsearch.page.charts.scales import Linear, scale_of

_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over tasks."""

    value: float
    error: float
    """Standard error of the mean; NaN for a single task."""

    def __str__(self) -> str:
        return f"{self.value:.3f}" if math.isnan(self.error) else f"{self.value:.3f} ± {self.error:.3f}"


def over_tasks(values: Values) -> Mean:
    """Return the mean over tasks of the means over seeds; NaN without runs."""
    means = [fmean(of_task) for of_task in _by_task(values)]
    error = stdev(means) / math.sqrt(len(means)) if len(means) > 1 else math.nan
    return Mean(fmean(means) if means else math.nan, error)


def differences(first: Values, second: Values) -> Values:
    """Return the differences between two methods, for the tasks and seeds that both have."""
    return {key: value - second[key] for key, value in first.items() if key in second}


def interval(values: Values, coverage: float = 0.95) -> tuple[float, float]:
    """Return a bootstrap interval of the mean over tasks and seeds; NaN without runs.

    Tasks are sampled with replacement, then seeds within each sampled task (Davison & Hinkley, 1997, section 3.8).
    """
    tasks = _by_task(values)
    if not tasks:
        return math.nan, math.nan
    rng = np.random.default_rng(0)
    count = len(tasks)
    means = np.stack(
        [
            np.asarray(of_task)[rng.integers(len(of_task), size=(_RESAMPLES, count, len(of_task)))].mean(axis=2)
            for of_task in tasks
        ]
    )  # [task, resample, index among the sampled tasks]
    sampled = rng.integers(count, size=(_RESAMPLES, count))
    totals = means[sampled, np.arange(_RESAMPLES)[:, None], np.arange(count)].mean(axis=1)
    low, high = np.quantile(totals, [(1 - coverage) / 2, (1 + coverage) / 2])
    return float(low), float(high)


def _by_task(values: Values) -> list[list[float]]:
    by_task: dict[str, list[float]] = defaultdict(list)
    for (task, _), value in sorted(values.items()):
        by_task[task].append(value)
    return list(by_task.values())


Row = tuple[str, ...]

_POINTS = 100
"""Number of budgets at which curves are drawn."""


def aligned(rows: Sequence[Row]) -> str:
    """Return a table as aligned text for a terminal; the first row is the header."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]]) + "\n"


def markdown(rows: Sequence[Row]) -> str:
    """Return a table as Markdown; the first row is the header."""
    first, *rest = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([first, f"|{' --- |' * first.count(' | ')} --- |", *rest]) + "\n"


def suite_rows(rows: Sequence[RunRow], methods: Sequence[str], workers: Sequence[int]) -> Iterator[Row]:
    """Yield the table of a family: a header, and a row for each method and number of workers with runs."""
    budgets = list(rows[0].hits) if rows else []
    yield (
        "method",
        "workers",
        "runs",
        *(f"hits by {budget:g}" for budget in budgets),
        "mean, 95 %",
        f"over {methods[0]}, 95 %",
        *(f"regret at {budget:g}" for budget in budgets),
    )
    for count in workers:
        base = hits_of(runs_of(rows, methods[0], count))
        for method in methods:
            runs = runs_of(rows, method, count)
            if not runs:
                continue
            means = hits_of(runs)
            yield (
                method,
                str(count),
                str(len(runs)),
                *(str(over_tasks(hits_of(runs, budget))) for budget in budgets),
                f"{over_tasks(means).value:.3f} ({shown_interval(means, '.3f')})",
                shown_interval(differences(means, base), "+.3f") if method != methods[0] else "",
                *(str(over_tasks(regret_of(runs, budget))) for budget in budgets),
            )


def shown_interval(values: Values, form: str) -> str:
    """Return an interval as text, empty without runs."""
    return " to ".join(format(end, form) for end in interval(values)) if values else ""


def plot(suite: Suite, results: Results, methods: Sequence[str], workers: int, directory: Path) -> Sequence[Path]:
    """Plot hits and regret over time, with bands of one standard error; return the paths of the plots."""
    last = suite.budgets[-1]
    across = [last * (index + 1) / _POINTS for index in range(_POINTS)]
    kinds: Sequence[tuple[str, Callable[[RunCourse, float], float], str]] = (
        ("hits", hits_at, f"share of runs that hit the best {suite.hit:.0%}"),
        ("regret", regret_at, "regret (0: best, 1: median)"),
    )
    paths = []
    for name, at, up in kinds:
        means = {
            method: [
                over_tasks({(key.task, key.seed): at(course, budget) for key, course in runs.items()})
                for budget in across
            ]
            for method in methods
            if (runs := results.of(method, workers))
        }
        values = [mean.value for of_method in means.values() for mean in of_method]
        is_regret = name == "regret"
        scale = scale_of([value for value in values if value > 0], log=True) if is_regret else scale_of(values)
        title = f"{suite.name}, {workers} workers"
        names = (f"full trainings (time x workers): {title}", up)
        chart = Chart(f"{title}: {name}", f"{up}, by method", Linear(0.0, last), scale, names)
        for number, (method, of_method) in enumerate(means.items()):
            ink, dashed = series(number)
            edges = [(mean.value - mean.error, mean.value + mean.error) for mean in of_method]
            chart.band([(x, low, high) for x, (low, high) in zip(across, edges, strict=True)], ink)
            chart.line([(x, mean.value) for x, mean in zip(across, of_method, strict=True)], ink, 2, dashed)
            chart.key(ink, method, "dashed" if dashed else "line")
        paths.append(directory / f"{name}-{workers}.svg")
        chart.picture.save(paths[-1])
    return paths
