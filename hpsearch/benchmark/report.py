"""What a benchmark found, for people: a table on the screen and as Markdown, and plots of hits and regret over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from hpsearch.benchmark.results import Results
from hpsearch.benchmark.suite import Suite
from hpsearch.benchmark.summary import At, hits_at, over_tasks, paired, regret_at
from hpsearch.errors import HpsearchError

__all__ = ["markdown", "plot", "table"]

Row = tuple[str, ...]

_DASHES = ("-", "--", "-.", ":")
"""For who can't tell the colours apart."""

_POINTS = 100
"""Budgets at which curves are drawn."""


def table(suite: Suite, results: Results, methods: Sequence[str], workers: Sequence[int]) -> str:
    """Give the table as it stands on a screen."""
    rows = list(_rows(suite, results, methods, workers))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]]) + "\n"


def markdown(suite: Suite, results: Results, methods: Sequence[str], workers: Sequence[int]) -> str:
    """Give the same as Markdown."""
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
    """Draw hits and regret over time, with bands of a standard error; give the files.

    Raises:
        HpsearchError: matplotlib isn't there.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise HpsearchError("plots need matplotlib, which isn't installed: pip install 'hpsearch[plots]'") from error
    last = suite.budgets[-1]
    across = [last * (place + 1) / _POINTS for place in range(_POINTS)]
    kinds: Sequence[tuple[str, At, str]] = (
        ("hits", hits_at, f"share of runs that hit the best {suite.hit:.0%}"),
        ("regret", regret_at, "regret (0: the best value, 1: the median)"),
    )
    paths = []
    for name, at, up in kinds:
        figure = Figure(figsize=(8, 5), layout="constrained")
        axes = figure.subplots()
        for place, method in enumerate(methods):
            if not (runs := results.of(method, workers)):
                continue
            means = [over_tasks(runs, at, budget) for budget in across]
            values = [mean.value for mean in means]
            (line,) = axes.plot(across, values, label=method, linestyle=_DASHES[place % len(_DASHES)])
            errors = [0.0 if mean.error != mean.error else mean.error for mean in means]
            low = [value - error for value, error in zip(values, errors, strict=True)]
            high = [value + error for value, error in zip(values, errors, strict=True)]
            axes.fill_between(across, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        axes.set(xlabel="full trainings (time x workers)", ylabel=up, title=f"{suite.name}, {workers} workers")
        if name == "regret":
            axes.set_yscale("log")
        axes.grid(alpha=0.3)
        axes.legend()
        paths.append(directory / f"{name}-{workers}.svg")
        figure.savefig(paths[-1])
    return paths
