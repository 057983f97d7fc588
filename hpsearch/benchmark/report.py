"""The report of a benchmark: a table of hits and regret by budget, and plots over time."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from hpsearch.benchmark.runs import Results, RunCourse, RunKey
from hpsearch.benchmark.suite import Suite
from hpsearch.page.charts import Chart, Linear, scale_of
from hpsearch.page.charts.picture import series

At = Callable[[RunCourse, float], float]
"""Returns a run's hits or regret at a budget."""


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over tasks."""

    value: float
    error: float
    """Standard error of the mean; NaN for a single task."""

    def __str__(self) -> str:
        return f"{self.value:.3f}" if math.isnan(self.error) else f"{self.value:.3f} ± {self.error:.3f}"


def hits_at(course: RunCourse, budget: float) -> float:
    """Return 1.0 if a run had a report as good as the final values of the best rows within the budget, else 0.0."""
    return float(any(course.hit[: bisect_right(course.at, budget)]))


def regret_at(course: RunCourse, budget: float) -> float:
    """Return the regret of a run's best report within the budget; 1 without a report."""
    count = bisect_right(course.at, budget)
    return course.regret[count - 1] if count else 1.0


def over_tasks(courses: Mapping[RunKey, RunCourse], at: At, budget: float) -> Mean:
    """Return the mean over tasks of the means over seeds."""
    return _mean(list(_by_task(courses, at, budget).values()))


def paired(first: Mapping[RunKey, RunCourse], second: Mapping[RunKey, RunCourse], at: At, budget: float) -> Mean:
    """Return the mean over tasks of the differences between two methods."""
    ours, theirs = _by_task(first, at, budget), _by_task(second, at, budget)
    return _mean([ours[task] - theirs[task] for task in ours if task in theirs])


def _by_task(courses: Mapping[RunKey, RunCourse], at: At, budget: float) -> Mapping[str, float]:
    by_task: dict[str, list[float]] = defaultdict(list)
    for key, course in courses.items():
        by_task[key.task].append(at(course, budget))
    return {task: fmean(values) for task, values in by_task.items()}


def _mean(values: Sequence[float]) -> Mean:
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return Mean(fmean(values) if values else math.nan, error)


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


def suite_rows(suite: Suite, results: Results, methods: Sequence[str], workers: Sequence[int]) -> Iterator[Row]:
    """Yield the table of a suite: a header, and a row for each method and number of workers with runs."""
    budgets = [f"{budget:g}" for budget in suite.budgets]
    last = suite.budgets[-1]
    yield (
        "method",
        "workers",
        "runs",
        *(f"hits by {budget}" for budget in budgets),
        f"over {methods[0]}",
        *(f"regret at {budget}" for budget in budgets),
    )
    for count in workers:
        base = results.of(methods[0], count)
        for method in methods:
            runs = results.of(method, count)
            if not runs:
                continue
            gain = "" if method == methods[0] or not base else str(paired(runs, base, hits_at, last))
            yield (
                method,
                str(count),
                str(len(runs)),
                *(str(over_tasks(runs, hits_at, budget)) for budget in suite.budgets),
                gain,
                *(str(over_tasks(runs, regret_at, budget)) for budget in suite.budgets),
            )


def plot(suite: Suite, results: Results, methods: Sequence[str], workers: int, directory: Path) -> Sequence[Path]:
    """Plot hits and regret over time, with bands of one standard error; return the paths of the plots."""
    last = suite.budgets[-1]
    across = [last * (index + 1) / _POINTS for index in range(_POINTS)]
    kinds: Sequence[tuple[str, At, str]] = (
        ("hits", hits_at, f"share of runs that hit the best {suite.hit:.0%}"),
        ("regret", regret_at, "regret (0: best, 1: median)"),
    )
    paths = []
    for name, at, up in kinds:
        means = {
            method: [over_tasks(runs, at, budget) for budget in across]
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
