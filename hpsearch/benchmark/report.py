"""Report a benchmark: a table on the screen and as Markdown, and plots of hits and regret over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from hpsearch.benchmark.results import Results
from hpsearch.benchmark.suite import Suite
from hpsearch.benchmark.summary import At, hits_at, over_tasks, paired, regret_at
from hpsearch.page.charts import Chart, Linear, scale_of
from hpsearch.page.charts.picture import series

__all__ = ["markdown", "plot", "table"]

Row = tuple[str, ...]

_POINTS = 100
"""Budgets at which curves are drawn."""


def table(suite: Suite, results: Results, methods: Sequence[str], workers: Sequence[int]) -> str:
    """Return the table for a terminal."""
    rows = list(_rows(suite, results, methods, workers))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]]) + "\n"


def markdown(suite: Suite, results: Results, methods: Sequence[str], workers: Sequence[int]) -> str:
    """Return the same as Markdown."""
    first, *rest = (f"| {' | '.join(row)} |" for row in _rows(suite, results, methods, workers))
    return "\n".join([first, f"|{' --- |' * first.count(' | ')} --- |", *rest]) + "\n"


def _rows(suite: Suite, results: Results, methods: Sequence[str], workers: Sequence[int]) -> Iterator[Row]:
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
    """Plot hits and regret over time, with bands of a standard error; return the paths."""
    last = suite.budgets[-1]
    across = [last * (place + 1) / _POINTS for place in range(_POINTS)]
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
