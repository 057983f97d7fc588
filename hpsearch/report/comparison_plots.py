"""Plots of a comparison: the best value over trials, iterations and seconds."""

from __future__ import annotations

import math
from pathlib import Path

from hpsearch.errors import HpsearchError, StorageError
from hpsearch.report.comparison import AXES, Axis, Comparison, Side

__all__ = ["comparison_plots"]

_DASHES = ("-", "--", "-.", ":")
"""For who can't tell the colours apart."""

_POINTS = 200

_ACROSS = {"trials": "trials begun", "iterations": "iterations", "seconds": "seconds"}


def comparison_plots(compared: Comparison, directory: Path) -> list[Path]:
    """Draw the median of each side, and a band between the quartiles; as far as all of its runs went.

    Returns:
        The files, as SVG and as PNG.

    Raises:
        HpsearchError: matplotlib isn't there.
        StorageError: They can't be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise HpsearchError("plots need matplotlib, which isn't installed: pip install 'hpsearch[plots]'") from error
    objective = compared.objective
    up = "hypervolume" if objective.several else objective.goals[0].name
    paths = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for axis in AXES:
            figure = Figure(figsize=(8, 5), layout="constrained")
            axes = figure.subplots()
            for place, side in enumerate(compared.sides):
                across, middle, low, high = _band(side, axis)
                (line,) = axes.plot(
                    across, middle, drawstyle="steps-post", label=side.label, linestyle=_DASHES[place % len(_DASHES)]
                )
                if len(side.runs) > 1:
                    axes.fill_between(across, low, high, step="post", color=line.get_color(), alpha=0.15, linewidth=0)
            axes.set(xlabel=_ACROSS[axis], ylabel=f"best {up}", title=objective.aim)
            axes.grid(alpha=0.3)
            axes.legend()
            for suffix in ("svg", "png"):
                paths.append(directory / f"best-by-{axis}.{suffix}")
                figure.savefig(paths[-1])
    except OSError as error:
        raise StorageError(f"{directory}: expected a place for plots that can be written: {error}") from error
    return paths


def _band(side: Side, axis: Axis) -> tuple[list[float], list[float], list[float], list[float]]:
    """Give where, the median there, the worse quartile and the better one; NaN where there is none."""
    far = min(getattr(run.course.end, axis) for run in side.runs)
    if len(side.runs) == 1:
        across = [float(getattr(moment, axis)) for moment in side.runs[0].course.changes] + [float(far)]
    else:
        across = [far * (place + 1) / _POINTS for place in range(_POINTS)]
    spreads = [side.spread([run.at(axis, amount) for run in side.runs]) for amount in across]
    middle, low, high = (
        [math.nan if value is None else value for value in values]
        for values in zip(*((one.median, one.low, one.high) for one in spreads), strict=True)
    )
    return across, middle, low, high
